# shellcheck shell=bash
# Functions for shell scripts. Source it after `set -euo pipefail`:
#   source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# It sets TE_ROOT (the repository), TE_DEPS (folder of downloaded dependencies) and TE_LOGS (logs of quiet steps).

TE_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
TE_DEPS="$TE_ROOT/.deps"
TE_LOGS="$TE_ROOT/build/logs"
TE_NEWER_CMAKE="$TE_DEPS/cmake/cmake/data/bin"  # where install_deps.sh puts CMake if the distribution's is too old
# shellcheck source=scripts/versions.env
source "$TE_ROOT/scripts/versions.env"

# say TEXT...: prints a line of progress.
say() { printf '%s\n' "$*"; }

# die TEXT...: prints an error on stderr, and exits with code 1.
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# refuse TEXT...: prints an error of the script's arguments on stderr, and exits with code 2.
refuse() {
  printf 'error: %s\n' "$*" >&2
  exit 2
}

# needs WHAT OPTION [VALUE]...: refuses an option without its value.
needs() { [[ -n "${3:-}" ]] || refuse "$2 needs $1"; }

# needs_existing WHAT OPTION [PATH]...: refuses an option without its path, or with one that does not exist.
needs_existing() {
  needs "$@"
  [[ -e "$3" ]] || refuse "$2: $3 does not exist; name $1"
}

# seconds_since START: prints the seconds since START (a value of EPOCHSECONDS).
seconds_since() { echo $((EPOCHSECONDS - $1)); }

# cpu_count: prints the number of CPUs. nproc alone would print OMP_NUM_THREADS, which is not for compilers and ctest.
cpu_count() { env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc; }

# interruptible COMMAND...: runs COMMAND so that Ctrl-C ends it, for commands in the background: bash lets them ignore
# Ctrl-C. They stay in the terminal's process group, where sudo can ask for a password and also gets the signal.
interruptible() {
  trap - INT QUIT
  "$@"
}

# descendants PID: prints the processes that PID has started, and those that they have started. Minimal systems lack ps.
descendants() {
  local child
  sed -n "s/^\([0-9]*\) (.*) [A-Z] $1 .*/\1/p" /proc/[0-9]*/stat 2>/dev/null | while read -r child; do
    echo "$child"
    descendants "$child"
  done
}

# stop_step SIGNAL PID LOG: ends a step, and this script by the same signal, so that its callers stop, too. It waits for
# the step, because a second run may replace the step's files.
stop_step() {
  trap - INT TERM
  # shellcheck disable=SC2046  # one word per process
  kill -s "$1" "$2" $(descendants "$2") 2>/dev/null || true  # processes of sudo get Ctrl-C from the terminal alone
  wait "$2" || true
  printf '\ninterrupted; log: %s\n' "$3" >&2
  kill -s "$1" "$BASHPID"
}

# run_step LABEL COMMAND...: quietly, but continues if COMMAND fails. Sets step_status to COMMAND's exit code, and does
# not return it: in conditions, bash ignores `set -e` in COMMAND.
run_step() {
  local label="$1" log start pid
  shift
  mkdir -p "$TE_LOGS"
  log="$TE_LOGS/$(tr -cs 'a-zA-Z0-9' '_' <<<"$label" | cut -c1-60).log"
  start=$EPOCHSECONDS
  interruptible "$@" >"$log" 2>&1 </dev/null &
  pid=$!
  # shellcheck disable=SC2064  # expand the step now
  trap "stop_step INT $pid $(printf %q "$log")" INT
  # shellcheck disable=SC2064
  trap "stop_step TERM $pid $(printf %q "$log")" TERM
  if [[ -t 1 ]]; then
    while kill -0 "$pid" 2>/dev/null; do
      printf '\r  %s ... %s s ' "$label" "$(seconds_since "$start")"
      sleep 1
    done
    printf '\r'
  fi
  step_status=0
  wait "$pid" || step_status=$?
  trap - INT TERM
  if [[ $step_status -ne 0 ]]; then
    tail -n 25 "$log" >&2
    printf 'error: %s failed after %s s; full log: %s\n' "$label" "$(seconds_since "$start")" "$log" >&2
  else
    say "  $label ... $(seconds_since "$start") s"
  fi
}

# quietly LABEL COMMAND...: runs COMMAND with its output in a log and prints "LABEL ... N s", or if it fails the last
# lines of the log and an error, and exits. On a terminal it shows the elapsed time.
quietly() {
  run_step "$@"
  [[ $step_status -eq 0 ]] || exit 1
}

# with_root COMMAND...: runs COMMAND as root, with sudo if needed.
with_root() {
  if [[ $(id -u) -eq 0 ]]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    die "root is needed for: $*; run as root or install sudo"
  fi
}

# python_with MODULE...: prints a Python 3 that can import all MODULEs: the one on the PATH, else the system's.
python_with() {
  local python module
  for python in python3 /usr/bin/python3; do
    command -v "$python" >/dev/null || continue
    for module in "$@"; do
      "$python" -c "import $module" >/dev/null 2>&1 || continue 2
    done
    echo "$python"
    return 0
  done
  return 1
}

# has_driver: true on a machine with an NVIDIA driver, or with TE_FORCE_CUDA_WHEELS=1.
has_driver() {
  [[ "${TE_FORCE_CUDA_WHEELS:-0}" == 1 ]] && return 0
  [[ -e /proc/driver/nvidia/version ]] && return 0
  command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1 && return 0
  { ldconfig -p 2>/dev/null || /sbin/ldconfig -p 2>/dev/null; } | grep 'libcuda\.so\.1 ' >/dev/null
}

# c_awk ARGUMENT...: awk whose decimal separator is a dot. mawk's is a comma in many locales, and "8.9" is then 8.
c_awk() { LC_ALL=C awk "$@"; }

# microseconds: prints the time. EPOCHREALTIME has the locale's decimal separator.
microseconds() { echo "${EPOCHREALTIME//[!0-9]/}"; }

# has_gpu CAPABILITY: true if nvidia-smi lists a GPU of at least this compute capability. te-train needs 8.0, FP8 8.9.
has_gpu() {
  command -v nvidia-smi >/dev/null || return 1
  nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null |
    c_awk -v least="$1" '$1 + 0 >= least + 0 { found = 1 } END { exit !found }'
}

# system_nvcc: prints the nvcc of an installed toolkit, in the order of cmake/TeNvcc.cmake; fails if there is none, or
# with TE_FORCE_CUDA_WHEELS=1.
system_nvcc() {
  local candidate
  [[ "${TE_FORCE_CUDA_WHEELS:-0}" == 1 ]] && return 1
  for candidate in "$(command -v "${CUDACXX:-}" || true)" "${CUDA_HOME:+$CUDA_HOME/bin/nvcc}" \
    "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; do
    if [[ -f "$candidate" && -x "$candidate" ]]; then
      readlink -f "$candidate"
      return 0
    fi
  done
  return 1
}

# any_nvcc: prints the nvcc that CMake uses: that of an installed toolkit, else that of the wheels.
any_nvcc() {
  system_nvcc && return 0
  [[ -x "$TE_DEPS/cuda/bin/nvcc" ]] && echo "$TE_DEPS/cuda/bin/nvcc"
}

# toolkit_has PATTERN: true if the installed toolkit or the system's library folders contain a file PATTERN.
toolkit_has() {
  local root folder
  root="$(dirname "$(dirname "$(system_nvcc)")")"
  for folder in "$root"/{lib,lib64,include,targets/*/lib,targets/*/include} /usr/include /usr/local/include \
    /usr/include/*-linux-gnu /usr/lib/*-linux-gnu /usr/local/lib /usr/lib64; do
    compgen -G "$folder/$1" >/dev/null && return 0
  done
  return 1
}

# older_than VERSION WANTED: true if a dotted version is lower than WANTED.
older_than() { [[ "$1" != "$2" && "$(printf '%s\n' "$1" "$2" | sort -V | sed -n 1p)" == "$1" ]]; }

# For code on the host, nvcc would take the distribution's g++.
newer_compiler=(CC=gcc-12 CXX=g++-12 CUDAHOSTCXX=g++-12)

# needs_newer_compiler: true if g++-12 of install_deps.sh is installed next to an older g++ (Ubuntu 22.04).
needs_newer_compiler() {
  command -v g++-12 >/dev/null && older_than "$(g++ -dumpversion 2>/dev/null || echo 0)" 12
}

# use_newer_tools: uses the compiler and CMake of install_deps.sh if the distribution's are too old (Ubuntu 22.04). Call
# it again after install_deps.sh.
use_newer_tools() {
  if [[ -x "$TE_NEWER_CMAKE/cmake" ]]; then PATH="$TE_NEWER_CMAKE:$PATH"; fi
  if [[ -z "${CXX:-}" ]] && needs_newer_compiler; then export "${newer_compiler[@]}"; fi
}

# export_of_newer_tools: prints the command with which another shell uses them; nothing if the distribution's will do.
export_of_newer_tools() {
  local settings=()
  if [[ -x "$TE_NEWER_CMAKE/cmake" ]]; then settings+=("PATH=$(printf %q "$TE_NEWER_CMAKE"):\$PATH"); fi
  if [[ -z "${CXX:-}" || "$CXX" == g++-12 ]] && needs_newer_compiler; then settings+=("${newer_compiler[@]}"); fi
  [[ ${#settings[@]} -eq 0 ]] || echo "export ${settings[*]}"
}
use_newer_tools

# debootstrap_folder SUITE: prints a folder for DEBOOTSTRAP_DIR that knows this release. All Ubuntu releases have the
# same script under different names, so that of an older release serves for those that this debootstrap does not know.
debootstrap_folder() {
  local folder=/usr/share/debootstrap
  if [[ ! -e "$folder/scripts/$1" ]]; then
    folder="$(mktemp -d)"
    cp -rs /usr/share/debootstrap/. "$folder"
    ln -s gutsy "$folder/scripts/$1"
  fi
  echo "$folder"
}

# make_system SUITE FOLDER [MIRROR]: installs a minimal Debian or Ubuntu system in a folder, with this machine's package
# proxy and its own certificates, which the package ca-certificates reads when it is installed. Needs root, network and
# debootstrap.
make_system() {
  local suite="$1" root="$2" options=(--variant=minbase) folder
  shift 2
  [[ $(id -u) -eq 0 ]] || die "root is needed for a chroot"
  command -v debootstrap >/dev/null || die "debootstrap is not installed; run apt-get install debootstrap"
  case "$suite" in
    jammy | noble | resolute)
      [[ -e /usr/share/keyrings/ubuntu-archive-keyring.gpg ]] ||
        die "the keys of Ubuntu's archive are not installed; install the package ubuntu-keyring of Debian or Ubuntu"
      options+=("--components=main,universe")
      folder="$(debootstrap_folder "$suite")"
      ;;
    *)
      folder=/usr/share/debootstrap
      [[ -e "$folder/scripts/$suite" ]] || die "this debootstrap does not know $suite; install a newer one"
      ;;
  esac
  quietly "debootstrap $suite" env DEBOOTSTRAP_DIR="$folder" debootstrap "${options[@]}" "$suite" "$root" "$@"
  # Ubuntu's updates, which every user has: the first g++-12 of 22.04 was not a release.
  case "$suite" in
    jammy | noble | resolute) sed -i "s/^deb \(.*\) $suite \(.*\)/&\ndeb \1 $suite-updates \2/" "$root/etc/apt/sources.list" ;;
  esac
  # Without waiting for the disk after each file: the system is removed after the test.
  echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/unsafe-io"
  chmod 755 "$root"  # mktemp -d makes a root folder that only root may enter
  # Without /etc/hosts, mpirun asks the network for "localhost", which takes seconds where the answer is lost.
  cp /etc/resolv.conf /etc/hosts "$root/etc/"
  if [[ -d /usr/local/share/ca-certificates ]]; then
    mkdir -p "$root/usr/local/share"
    cp -r /usr/local/share/ca-certificates "$root/usr/local/share/"
  fi
  [[ ! -d /etc/apt/apt.conf.d ]] || find /etc/apt/apt.conf.d -name '*proxy*' -exec cp {} "$root/etc/apt/apt.conf.d/" \;
}

# in_system FOLDER COMMAND...: runs a command in that system with /proc, /sys, /dev and /dev/shm, and with a clean
# environment.
in_system() {
  local root="$1"
  shift
  # shellcheck disable=SC2016  # expanded by the inner shell
  unshare --mount sh -c 'mount --make-rprivate / && mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && mount --rbind /sys "$0/sys" &&
    mount -t tmpfs tmpfs "$0/dev/shm" && exec chroot "$0" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"' "$root" "$@"
}

# checkout_commit: prints the commit of this checkout; fails in a copy without .git, also in another git repository.
checkout_commit() {
  local git=(env -u GIT_DIR -u GIT_WORK_TREE -u GIT_INDEX_FILE git -C "$TE_ROOT") prefix
  prefix="$("${git[@]}" rev-parse --show-prefix 2>/dev/null)" && [[ -z "$prefix" ]] &&
    "${git[@]}" rev-parse --short HEAD
}

# add_row FILE HEADER ROW: inserts the first row of the table with this header in a document.
add_row() {
  grep -qxF "$2" "$1" || die "$1 has no table with the header $2"
  awk -v header="$2" -v row="$3" '{ print } $0 == header { getline; print; print row }' "$1" >"$1.partial"
  mv "$1.partial" "$1"
}

# can_build_cuda: true if all dependencies of the cuda preset are installed.
can_build_cuda() {
  [[ -e "$TE_DEPS/cudnn-frontend/include/cudnn_frontend.h" ]] || return 1
  any_nvcc >/dev/null
}

# other_compiler FOLDER: prints the C++ compiler of a build tree if CXX is another one, which CMake then ignores.
other_compiler() {
  local configured wanted
  configured="$(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' "$1/CMakeCache.txt" 2>/dev/null)" || return 1
  wanted="$(command -v "${CXX:-}")" || return 1
  [[ -n "$configured" && "$(readlink -f "$configured")" != "$(readlink -f "$wanted")" ]] && echo "$configured"
}

# configure_preset PRESET: configures build/PRESET, from the start if it has another compiler than CXX. TE_WERROR=ON
# (warnings are errors) and TE_UNOPTIMIZED_KERNELS=ON (CMake's options of these names) are for .ci/run.
configure_preset() {
  local compiler fresh=()
  # The preset fuzz sets its compiler itself.
  if [[ "$1" != fuzz ]] && compiler="$(other_compiler "$TE_ROOT/build/$1")"; then
    say "  build/$1 was configured with $compiler: starting again with $CXX and default options"
    fresh=(--fresh)
  fi
  quietly "configuring $1" cmake --preset "$1" "${fresh[@]}" -DTE_WERROR="${TE_WERROR:-OFF}" \
    -DTE_UNOPTIMIZED_KERNELS="${TE_UNOPTIMIZED_KERNELS:-OFF}"
}

# build_preset PRESET [TARGET...]: builds all or the given targets with one line of progress; prints compiler errors.
build_preset() {
  local preset="$1" arguments=()
  shift
  if [[ $# -gt 0 ]]; then arguments=(--target "$@"); fi
  quietly "building $preset" cmake --build "$TE_ROOT/build/$preset" -j "$(cpu_count)" "${arguments[@]}"
}

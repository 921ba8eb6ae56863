#!/usr/bin/env bash
# Installs the dependencies of te-train without asking questions. Run it as root or as a user with sudo, on Debian 12 or
# newer or Ubuntu 22.04 or newer. A second run finds everything installed and exits at once.
#
#   scripts/install_deps.sh [--dev]     --dev adds tools of CI checks and packaging (clang-tidy, shellcheck, cuobjdump,
#                                       ...) and Python packages for tests: TensorBoard's reader, wandb, mlflow-skinny,
#                                       pyarrow and tokenizers
#
# 1. Distribution packages (compiler, CMake, libraries, Python with numpy, scipy, matplotlib and jinja2).
# 2. For CUDA: the headers of cudnn-frontend, in .deps/cudnn-frontend.
# 3. With an NVIDIA driver but no CUDA toolkit: nvcc, cuBLAS, cuDNN and NCCL as pinned wheels, in .deps/cuda, where
#    CMake finds them. If a toolkit has no cuDNN or NCCL, only these are added. Versions: scripts/versions.env.
# 4. On Ubuntu 22.04 the last line is the export command that cmake needs in your shell.
#
# TE_FORCE_CUDA_WHEELS=1 behaves as if there were a driver and no toolkit, to build for GPUs on a machine without one.
# CMake reads it, too.
# TE_NO_CUDA=1 installs nothing for CUDA.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# Same names on Debian 12 to 14 and Ubuntu 22.04 to 26.04.
packages=(
  g++ cmake ninja-build ccache git ca-certificates
  libyaml-cpp-dev libcli11-dev libspdlog-dev nlohmann-json3-dev libgtest-dev
  libopenmpi-dev openmpi-bin libopenblas-dev libxxhash-dev
  zlib1g-dev libzstd-dev liblzma-dev libpcre2-dev libutf8proc-dev libsentencepiece-dev
  python3 python3-numpy python3-scipy python3-matplotlib python3-jinja2
)
dev_packages=(clang-tidy shellcheck dpkg-dev file debootstrap)

# usage: the comment at the top of this file.
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; }

# missing_packages NAME...: prints the packages that are not installed. A package may also be installed for a foreign
# architecture, which does not count.
missing_packages() {
  local name native
  native="$(dpkg --print-architecture 2>/dev/null || true)"
  for name in "$@"; do
    dpkg-query -W -f '${Architecture} ${db:Status-Status}\n' "$name" 2>/dev/null |
      grep -xE "($native|all) installed" >/dev/null || echo "$name"
  done
}

# apt_install NAME...: installs packages without recommended packages and without questions.
apt_install() {
  with_root env DEBIAN_FRONTEND=noninteractive apt-get -y -q -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 \
    install --no-install-recommends "$@"
}

# apt_update: refreshes the package lists; continues if a third-party source is unreachable.
apt_update() {
  with_root apt-get -q -o DPkg::Lock::Timeout=300 update || say "some package lists could not be refreshed"
}

# ask_for_root PACKAGE...: asks for sudo's password now, because the progress of a step would overwrite the question.
ask_for_root() {
  if [[ $(id -u) -eq 0 ]]; then return 0; fi
  command -v sudo >/dev/null || die "root is needed; install sudo, or run as root: apt-get install $*"
  sudo -n true 2>/dev/null || sudo -v || die "sudo did not work; run as root: apt-get install $*"
}

# install_packages NAME...: installs the packages that are missing.
install_packages() {
  local missing
  mapfile -t missing < <(missing_packages "$@")
  [[ ${#missing[@]} -eq 0 ]] && return 0
  command -v apt-get >/dev/null ||
    die "this script supports Debian and Ubuntu only; install the equivalents of: ${missing[*]}"
  say "  missing packages: ${missing[*]}"
  ask_for_root "${missing[@]}"
  quietly "refreshing package lists" apt_update
  quietly "installing ${#missing[@]} packages" apt_install "${missing[@]}"
}

# install_newer_tools: installs a C++20 compiler and CMake on distributions with older ones (Ubuntu 22.04).
install_newer_tools() {
  local python
  if older_than "$(g++ -dumpversion)" 12; then install_packages g++-12; fi
  if older_than "$(cmake --version | sed -n '1s/[^0-9]*//p')" "$CMAKE_OLDEST"; then
    python="$(python_with pip)" || { install_packages python3-pip && python="$(python_with pip)"; }
    install_wheels cmake "$python" "" --no-deps "cmake==$CMAKE_VERSION"
  fi
  use_newer_tools
}

# install_abseil: installs Abseil if SentencePiece's header (0.2 and later) includes it, since the package lacks it.
install_abseil() {
  if grep -qs 'include <absl/' /usr/include/sentencepiece_processor.h; then install_packages libabsl-dev; fi
}

# download_wheels FOLDER REQUIREMENT...: fetches wheels for this machine's architecture, without their dependencies.
download_wheels() {
  local folder="$1" python platforms=() tag
  shift
  # The Python version does not matter, since only headers and libraries are used, so it is pinned, too.
  for tag in 2_28 2_27 2_24 2_18 2_17 2_12; do platforms+=(--platform "manylinux_${tag}_$(uname -m)"); done
  platforms+=(--platform "manylinux2014_$(uname -m)" --platform "manylinux2010_$(uname -m)")
  if ! python="$(python_with pip)"; then
    install_packages python3-pip
    python="$(python_with pip)" || die "python3-pip is installed but no python3 can import pip"
  fi
  mkdir -p "$folder"
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --implementation cp --python-version 3.11 "${platforms[@]}" --dest "$folder" "$@"
}

# fetch_tree NAME LABEL REQUIREMENT...: downloads wheels and unpacks them to .deps/NAME, unless the same versions are
# there. The folder gets its name only when it is complete.
fetch_tree() {
  local name="$1" label="$2" target stage
  shift 2
  target="$TE_DEPS/$name"
  if [[ -f "$target/.versions" && "$(cat "$target/.versions")" == "$*" ]]; then return 0; fi
  stage="$TE_DEPS/.$name.partial"
  rm -rf "$stage"
  mkdir -p "$stage/wheels" "$stage/tree"
  [[ -n "$(python_with pip || true)" ]] || install_packages python3-pip
  quietly "downloading $label" download_wheels "$stage/wheels" "$@"
  quietly "unpacking $label" "$(python_with zipfile)" "$TE_ROOT/scripts/unpack_wheels.py" "$stage/tree" "$stage"/wheels/*.whl
  echo "$*" >"$stage/tree/.versions"
  rm -rf "$target"
  mv "$stage/tree" "$target"
  rm -rf "$stage"
}

# check_driver: prints a warning if the driver is too old for the CUDA version of the wheels.
check_driver() {
  local version
  version="$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | sed -n 1p || true)"
  if [[ "$version" =~ ^([0-9]+)\. ]] && ((BASH_REMATCH[1] < CUDA_MIN_DRIVER)); then
    say "warning: NVIDIA driver $version is older than $CUDA_MIN_DRIVER, which CUDA $CUDA_MAJOR needs: upgrade it," \
      "or install a CUDA 12 toolkit"
  fi
}

# install_cuda: installs missing parts of CUDA, and the headers of cudnn-frontend.
install_cuda() {
  local nvcc major extras=()
  if [[ "${TE_NO_CUDA:-0}" == 1 ]]; then return 0; fi
  if nvcc="$(system_nvcc)"; then
    major="$("$nvcc" --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')"
    [[ "${major:-12}" -ge 12 ]] || die "CUDA $major ($nvcc) is too old: te-train needs CUDA 12 or 13." \
      "Set CUDACXX to a newer nvcc, or TE_NO_CUDA=1 to build for the CPU"
    toolkit_has 'libcudnn.so*' && toolkit_has 'cudnn.h' || extras+=("nvidia-cudnn-cu$major==$CUDNN_VERSION")
    toolkit_has 'libnccl.so*' && toolkit_has 'nccl.h' || extras+=("nvidia-nccl-cu$major==$NCCL_VERSION")
    if [[ ${#extras[@]} -gt 0 ]]; then fetch_tree cuda "${extras[*]}" "${extras[@]}"; fi
  elif has_driver; then
    check_driver
    fetch_tree cuda "CUDA toolkit wheels (1.2 GB)" \
      "nvidia-cuda-nvcc==$CUDA_NVCC_VERSION" "nvidia-cuda-crt==$CUDA_CRT_VERSION" "nvidia-nvvm==$CUDA_NVVM_VERSION" \
      "nvidia-cuda-runtime==$CUDA_RUNTIME_VERSION" "nvidia-cuda-cccl==$CUDA_CCCL_VERSION" \
      "nvidia-cuda-nvrtc==$CUDA_NVRTC_VERSION" "nvidia-cublas==$CUBLAS_VERSION" \
      "nvidia-cudnn-cu$CUDA_MAJOR==$CUDNN_VERSION" "nvidia-nccl-cu$CUDA_MAJOR==$NCCL_VERSION"
  else
    return 0
  fi
  fetch_tree cudnn-frontend "cudnn-frontend headers" "nvidia-cudnn-frontend==$CUDNN_FRONTEND_VERSION"
}

# install_clang_format: installs the pinned formatter, unless the distribution's has this version.
install_clang_format() {
  local python
  [[ "$(clang-format --version 2>/dev/null)" == *" $CLANG_FORMAT_VERSION"* ]] && return 0
  [[ -x "$TE_DEPS/clang-format/bin/clang-format" ]] && return 0
  python="$(python_with pip)" || { install_packages python3-pip && python="$(python_with pip)"; }
  quietly "installing clang-format $CLANG_FORMAT_VERSION" "$python" -m pip install --quiet --no-deps --prefix "$TE_DEPS/clang-format" \
    --disable-pip-version-check --ignore-installed "clang-format==$CLANG_FORMAT_VERSION"
}

# install_wheels NAME PYTHON SKIPPED [--no-deps] PACKAGE==VERSION...: installs Python packages for PYTHON in .deps/NAME.
# SKIPPED names the test that needs them: if they cannot be downloaded, a warning says that it is skipped. If SKIPPED is
# empty, a failed download is an error.
install_wheels() {
  local name="$1" python="$2" skipped="$3" target="$TE_DEPS/$1" wanted
  shift 3
  wanted="$* $("$python" --version)"
  if [[ -f "$target/.versions" && "$(cat "$target/.versions")" == "$wanted" ]]; then return 0; fi
  rm -rf "$target" "$target.partial"
  run_step "installing $name" "$python" -m pip install --quiet --disable-pip-version-check --no-compile \
    --target "$target.partial" "$@"
  if [[ $step_status -eq 0 ]]; then
    echo "$wanted" >"$target.partial/.versions"
    mv "$target.partial" "$target"
  elif [[ -n "$skipped" ]]; then
    say "warning: $name not installed: $skipped will be skipped"
  else
    return 1
  fi
}

# install_test_packages: installs Python packages for the tests of scripts and of event files.
install_test_packages() {
  local python
  if python="$(python_with numpy scipy matplotlib pip)" || python="$(python_with pip)"; then
    install_wheels trackers "$python" "the test of scripts/export_metrics.py with wandb and mlflow" \
      "wandb==$WANDB_VERSION" "mlflow-skinny==$MLFLOW_VERSION"
    install_wheels pyarrow "$python" "the test of scripts/parquet_to_jsonl.py" --no-deps "pyarrow==$PYARROW_VERSION"
    install_wheels tokenizers "$python" "the test of scripts/train_tokenizer.py" --no-deps "tokenizers==$TOKENIZERS_VERSION"
  fi
  # TensorBoard's reader and its two dependencies without the web server, for the distribution's Python, which CTest
  # uses.
  install_packages python3-pip
  install_wheels tensorboard /usr/bin/python3 "" --no-deps "tensorboard==$TENSORBOARD_VERSION" \
    "protobuf==$TENSORBOARD_PROTOBUF_VERSION" "absl-py==$TENSORBOARD_ABSL_VERSION"
}

# install_disassembler: installs cuobjdump and nvdisasm, which it runs, where there is nvcc without them.
install_disassembler() {
  if can_build_cuda && ! command -v cuobjdump >/dev/null; then
    fetch_tree disassembler "cuobjdump" "nvidia-cuda-cuobjdump==$CUDA_DISASSEMBLER_VERSION" \
      "nvidia-cuda-nvdisasm==$CUDA_DISASSEMBLER_VERSION"
  fi
}

# print_versions: prints the versions that the build will use.
print_versions() {
  local package versions=() nvcc
  for package in libyaml-cpp-dev libcli11-dev libspdlog-dev nlohmann-json3-dev libgtest-dev libopenmpi-dev libopenblas-dev \
    libpcre2-dev libutf8proc-dev libsentencepiece-dev; do
    versions+=("$(dpkg-query -W -f '${Package} ${Version}' "$package" 2>/dev/null | sed 's/^lib//;s/-dev / /')")
  done
  say "  $("${CXX:-g++}" --version | sed -n 1p); $(cmake --version | sed -n 1p); ninja $(ninja --version)"
  say "  $(printf '%s; ' "${versions[@]}" | sed 's/; $//')"
  if nvcc="$(any_nvcc)"; then
    say "  CUDA $("$nvcc" --version | sed -n 's/.*, V//p') ($nvcc)"
  else
    say "  no CUDA: te-train will be built for the CPU"
  fi
}

main() {
  local dev=0 start=$EPOCHSECONDS line
  while [[ $# -gt 0 ]]; do
    case "$1" in
      --dev) dev=1 ;;
      -h | --help) usage && exit 0 ;;
      *) refuse "unknown option $1; see --help" ;;
    esac
    shift
  done
  say "dependencies of te-train"
  if [[ $dev -eq 1 ]]; then packages+=("${dev_packages[@]}"); fi
  install_packages "${packages[@]}"
  install_newer_tools
  install_abseil
  if [[ $dev -eq 1 ]]; then
    install_clang_format
    install_test_packages
  fi
  install_cuda
  if [[ $dev -eq 1 ]]; then install_disassembler; fi
  print_versions
  say "dependencies ready ($(seconds_since "$start") s)"
  if line="$(export_of_newer_tools)" && [[ -n "$line" ]]; then say "before you run cmake: $line"; fi
}

main "$@"

#!/usr/bin/env bash
# Tests the Debian package as a user would: tokenizes, trains, resumes and generates with the installed programs.
#
#   scripts/test_package.sh [--quick] PACKAGE.deb
#   scripts/test_package.sh --quick PREFIX
#
#   --quick   unpack the package to a folder and run it there with this machine's libraries. Takes seconds and needs
#             neither root nor network. Also tests that the installation can be moved. PREFIX is a folder of `cmake
#             --install`.
#
# Without --quick: installs a minimal system of this distribution's release (needs debootstrap, root and network). There
# apt installs the package with its dependencies, it runs as an ordinary user, and its removal must leave no files.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# usage: the comment at the top of this file.
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; }

# write_trial FILE: writes the script that uses the package; it runs as FILE PREFIX in an empty folder.
write_trial() {
  cat >"$1" <<'TRIAL'
set -eu
prefix="$1"
export PATH="$prefix/bin:$PATH" OMP_NUM_THREADS=2 OPENBLAS_NUM_THREADS=1
for program in te-train te-data te-convert te-generate te-experiment te-bench; do
  [ "$(command -v $program)" = "$prefix/bin/$program" ]
  $program --version
  [ -s "$prefix/share/bash-completion/completions/$program" ]
done
for file in README.md CHANGELOG.md copyright docs/reference/configuration.md; do [ -s "$prefix/share/doc/te-train/$file" ]; done
for i in 1 2 3 4 5 6 7 8; do echo "In the beginning was document $i, and it was long enough to learn from."; echo; done >text.txt
te-data tokenize --tokenizer bytes --input text.txt --split-by blank-line --output train
cat >run.yaml <<'YAML'
extends: PREFIX/share/te-train/configs/quickstart_fp8.yaml
model: {num_layers: 2, hidden_size: 32, ffn_hidden_size: 48, num_query_groups: 4, seq_length: 16}
training: {micro_batch_size: 2, global_batch_size: 2, train_steps: 2, eval_interval: 0, device: cpu}
data: {train: train, valid: []}
YAML
sed -i "s|PREFIX|$prefix|" run.yaml
te-train --config run.yaml
[ "$(tail -n 1 runs/run/loss.csv | cut -d , -f 1)" = 2 ]
te-train --config run.yaml --set checkpoint.resume=auto --set training.train_steps=3
te-generate --checkpoint runs/run/checkpoints --prompt In --max-tokens 4 --seed 1 --device cpu >generated.txt
[ -s generated.txt ]
te-train --config "$prefix/share/te-train/configs/llama7b_fp8.yaml" --dry-run --set training.device=auto >plan.txt
grep -q '^ *total' plan.txt
TRIAL
}

# check_names FOLDER PACKAGE: checks that the package has no files outside /usr and no conffiles.
check_names() {
  local folder="$1/names"
  mkdir "$folder"
  dpkg-deb -e "$2" "$folder/control"
  [[ ! -s "$folder/control/conffiles" ]] || die "the package has conffiles"
  ! dpkg-deb -c "$2" | awk '{print $6}' | grep -vE '^\./(usr/.*)?$' || die "the package has files outside /usr"
  dpkg-deb -f "$2" Package Version Architecture Depends Recommends
}

# quick FOLDER PACKAGE: tests the unpacked package, or a copy of the installed tree, in the folder.
quick() {
  local program prefix="$1/root/usr"
  if [[ -d "$2" ]]; then
    mkdir -p "$1/root"
    cp -r "$2" "$prefix"
  else
    dpkg-deb -x "$2" "$1/root"
  fi
  mkdir "$1/work"
  for program in "$prefix"/bin/te-*; do
    ! ldd "$program" | grep 'not found' || die "$(basename "$program"): libraries are missing"
  done
  (cd "$1/work" && sh "$1/trial.sh" "$prefix") || die "the trial failed; its last command is above"
}

# whole FOLDER PACKAGE: tests the package after apt has installed it in a new system.
whole() {
  local folder="$1" root="$1/root" release mirror before after
  # shellcheck source=/dev/null
  release="$(. /etc/os-release && echo "$VERSION_CODENAME")"
  # shellcheck disable=SC2016  # apt's own variable
  mirror="$(apt-get indextargets --format '$(SITE)' "Created-By: Packages" 2>/dev/null | grep -v security | sed -n 1p)"
  make_system "$release" "$root" ${mirror:+"$mirror"}
  cp "$2" "$root/te-train.deb"
  before="$(find "$root/usr/share" "$root/etc" -name '*te-train*' | sort)"
  quietly "installing the package" in_system "$root" apt-get -y -q -o Dpkg::Use-Pty=0 install --no-install-recommends /te-train.deb
  in_system "$root" useradd --create-home user
  cp "$folder/trial.sh" "$root/home/user/trial.sh"
  in_system "$root" su user -c 'mkdir ~/work && cd ~/work && sh ../trial.sh /usr' || die "the trial failed; its last command is above"
  quietly "removing the package" in_system "$root" apt-get -y -q -o Dpkg::Use-Pty=0 purge te-train
  after="$(find "$root/usr/share" "$root/etc" -name '*te-train*' | sort)"
  [[ "$before" == "$after" ]] || die "files remain after removing the package: $after"
}

main() {
  local form=whole package="" folder started=$EPOCHSECONDS
  while [[ $# -gt 0 ]]; do
    case "$1" in
      --quick) form=quick ;;
      -h | --help) usage && exit 0 ;;
      -*) refuse "unknown option $1; see --help" ;;
      *) package="$(realpath -m "$1")" ;;
    esac
    shift
  done
  [[ -f "$package" || ($form == quick && -d "$package") ]] ||
    refuse "'$package' is not a package of scripts/package.sh; see --help"
  folder="$(mktemp -d)"
  # shellcheck disable=SC2064  # the folder of now
  trap "rm -rf --one-file-system '$folder'" EXIT
  chmod 755 "$folder"
  write_trial "$folder/trial.sh"
  if [[ -f "$package" ]]; then check_names "$folder" "$package"; fi
  "$form" "$folder" "$package"
  say "$(basename "$package") works ($form, $(seconds_since "$started") s)"
}

main "$@"

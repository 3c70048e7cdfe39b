#!/usr/bin/env bash
# Builds the sandbox image: build.sh IMAGE STAMP. The base is python:3.12-slim (or SANDBOX_BASE_IMAGE); where no registry gives
# it, one is made from Debian packages, which needs root. `./ctl.sh image` calls this.
set -euo pipefail

PROJECT=$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.." && pwd)
cd -- "$PROJECT"

BASE=${SANDBOX_BASE_IMAGE:-python:3.12-slim}
PULL_LIMIT_SECS=300
INCOMPLETE=.incomplete
DEBIAN_PACKAGES=python3,python3-distutils,bash,jq,nodejs,ca-certificates,tzdata

say() { printf '%s\n' "$*"; }

fail() {
    printf 'build.sh: %s\n' "$*" >&2
    exit 1
}

have_image() { docker image inspect "$1" >/dev/null 2>&1; }

# The newest Debian or Ubuntu release has no python3-distutils any more.
debian_packages() {
    if apt-cache show python3-distutils >/dev/null 2>&1; then
        printf '%s' "$DEBIAN_PACKAGES"
    else
        printf '%s' "${DEBIAN_PACKAGES/python3-distutils,/}"
    fi
}

# Puts the Python packages for a new system's interpreter into its folder, with this host's pip.
install_python_packages() {
    local root=$1 target version platforms=() minor
    target=$root/opt/cellblock/packages
    version=$(chroot "$root" python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    for minor in $(seq 35 -1 17); do
        platforms+=(--platform "manylinux_2_${minor}_$(uname -m)")
    done
    platforms+=(--platform "manylinux2014_$(uname -m)")
    mkdir -p "$target"
    say "Installing the Python packages for Python $version"
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-compile --only-binary=:all: \
        --python-version "$version" --implementation cp "${platforms[@]}" \
        --target "$target" -r sandbox-image/requirements.txt && return
    rm -rf -- "$target" && mkdir -p "$target"
    # Whoever sees this file knows that the base is not complete.
    touch "$target/$INCOMPLETE"
    say "The Python packages could not be installed (no pip or no network): sandboxes will have the standard library only."
}

# Makes a base from the packages of this host's own Debian (or Ubuntu) release and tags it with its name.
make_debian_base() {
    local tag=$1 suite sources=() file root
    [[ $(id -u) -eq 0 ]] || fail "no registry gives $BASE, and making a base from Debian packages needs root"
    command -v apt-get >/dev/null || fail "no registry gives $BASE, and this host has no Debian packages to make a base from"
    if ! command -v mmdebstrap >/dev/null; then
        say "Installing mmdebstrap"
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends mmdebstrap; } ||
            fail "mmdebstrap could not be installed"
    fi
    suite=$(sed -n "s/^VERSION_CODENAME=//p" /etc/os-release)
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list.d/ubuntu.sources; do
        [[ -s $file ]] && sources+=("$file")
    done
    say "Making a base from $suite packages (once)"
    WORK=$(mktemp -d)
    trap 'rm -rf -- "$WORK"' EXIT
    root=$WORK/root
    mmdebstrap --quiet --variant=minbase --include="$(debian_packages)" \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' \
        "$suite" "$root" "${sources[@]}" || fail "mmdebstrap could not make a $suite system"
    install_python_packages "$root"
    # One that lacks packages is for this build only: the next one tries again.
    [[ ! -e $root/opt/cellblock/packages/$INCOMPLETE ]] || tag=$tag-incomplete
    tar -C "$root" -c . | docker import - "$tag" >/dev/null || fail "the engine did not take the base"
    BASE=$tag
}

pull_base() {
    have_image "$BASE" && return
    say "Asking the registry for $BASE"
    timeout "$PULL_LIMIT_SECS" docker pull --quiet "$BASE" >/dev/null 2>&1
}

main() {
    local image=${1:?image} stamp=${2:?stamp} network=default
    if ! pull_base; then
        say "No registry gives $BASE."
        local tag
        tag=cellblock-base:$(cat sandbox-image/build.sh sandbox-image/requirements.txt | sha256sum | cut -c1-16)
        if have_image "$tag"; then
            BASE=$tag
        else
            make_debian_base "$tag"
        fi
        # A base without its packages must not pass for the real thing.
        [[ $BASE != *-incomplete ]] || stamp=$stamp-incomplete
        network=none
    fi
    say "Building $image on $BASE"
    local output
    output=$(docker build --network "$network" --build-arg "BASE=$BASE" --build-arg "STAMP=$stamp" \
        -f sandbox-image/Dockerfile -t "$image" . 2>&1) || {
        printf '%s\n' "$output" | tail -n 40
        fail "the image could not be built"
    }
    say "The sandbox image $image is ready."
}

main "$@"

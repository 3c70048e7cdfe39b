#!/usr/bin/env bash
# Starts, stops, looks after and tests Cellblock. `./ctl.sh help` lists the commands.
# Works from any folder: its own folder is the project, and relative settings are relative to that.
set -euo pipefail

ROOT=$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")" && pwd)
cd -- "$ROOT"

CACHE=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/cellblock
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$CACHE/target}
# Most tests wait for something most of the time.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$(($(nproc) * 2))}
# Files that Python or ruff leave in kernel/ would end up in the binary, which embeds that folder.
export PYTHONDONTWRITEBYTECODE=1 RUFF_NO_CACHE=true
# As the package's build sets it, so that nothing is compiled once with it and once without.
export PYO3_BUILD_EXTENSION_MODULE=1

# The engine that the service asks too, whatever context the docker client is set to.
export DOCKER_HOST=${DOCKER_HOST:-unix:///var/run/docker.sock}
OWN_IMAGE=cellblock-sandbox

RELEASE_BINARY=$CARGO_TARGET_DIR/release/cellblock
DEV_BINARY=$CARGO_TARGET_DIR/debug/cellblock
START_LIMIT_SECS=60
DEGRADED_LIMIT_SECS=20
STOP_LIMIT_SECS=30
LOG_LIMIT_BYTES=$((50 * 1024 * 1024))
# For each target, in a run of all tests.
FUZZ_SECONDS=4
# What the last test runs said; the table of the attack battery is made from it.
TEST_LOGS=$CARGO_TARGET_DIR/battery

say() { printf '%s\n' "$*"; }

fail() {
    printf 'ctl.sh: %s\n' "$*" >&2
    exit 1
}

# The value of a setting as the service reads it: the environment, else .env, else the default; empty means default.
setting() {
    local name=$1 default=$2 value=
    if [[ -v $name ]]; then
        value=${!name}
    elif [[ -f .env ]]; then
        value=$(sed -nE "s/^[[:space:]]*(export[[:space:]]+)?${name}[[:space:]]*=[[:space:]]*(.*)\$/\\2/p" .env | tail -n 1)
        case $value in
            \"*) value=${value#\"} && value=${value%%\"*} ;;
            \'*) value=${value#\'} && value=${value%%\'*} ;;
            *) value=${value%%[[:space:]]#*} ;;
        esac
    fi
    value="${value#"${value%%[![:space:]]*}"}"
    value="${value%"${value##*[![:space:]]}"}"
    printf '%s' "${value:-$default}"
}

WORK_ROOT_SETTING=$(setting WORK_ROOT ./sandboxes)
WORK_ROOT_PATH=$(realpath -m -- "$WORK_ROOT_SETTING")
LOG_FILE=$WORK_ROOT_PATH/service.log
SERVICE_FILE=$WORK_ROOT_PATH/service.json

# The engine is asked by the service's own rules: DOCKER_HOST, else the local socket.
engine_answers() {
    command -v docker >/dev/null && timeout 10 docker version --format '{{.Server.Version}}' >/dev/null 2>&1
}

# Root makes containers by itself; anybody else needs an engine that does.
require_rights() {
    [[ $(id -u) -eq 0 ]] && return
    local command=${1:-start}
    [[ $command != test && $command != bench ]] && engine_answers && return
    fail "sandboxes are containers: run as root, or (not for test and bench) let this user reach a Docker engine (group docker):
    sudo env \"PATH=\$PATH\" $ROOT/ctl.sh $command"
}

require_tools() {
    local missing=()
    command -v cargo >/dev/null || missing+=("cargo    install Rust 1.92 or newer: https://rustup.rs")
    command -v gcc >/dev/null || command -v cc >/dev/null ||
        missing+=("gcc      install a C compiler: apt-get install gcc libc6-dev")
    if ! command -v python3 >/dev/null; then
        missing+=("python3  install Python 3.9 or newer: apt-get install python3 python3-pip")
    elif ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))'; then
        missing+=("python3  is older than 3.9; install a newer one")
    fi
    [[ ${#missing[@]} -eq 0 ]] && return
    say "Missing on this machine:"
    printf '  %s\n' "${missing[@]}"
    exit 1
}

build_release() {
    require_tools
    cargo build --release --locked
}

service_field() {
    [[ -r $SERVICE_FILE ]] || return 0
    sed -nE "s/.*\"$1\":\"?([^\",}]*).*/\\1/p" "$SERVICE_FILE"
}

# True if the process is a cellblock that holds this work root, not another program that got its number.
is_our_service() {
    local pid=$1 program
    [[ $pid =~ ^[0-9]+$ && -d /proc/$pid ]] || return 1
    program=$(readlink "/proc/$pid/exe" 2>/dev/null) || return 1
    program=${program% (deleted)}
    [[ ${program##*/} == cellblock ]] || return 1
    [[ -n $(find "/proc/$pid/fd" -lname "$WORK_ROOT_PATH/lock" -print -quit 2>/dev/null) ]]
}

running_pid() {
    local pid
    pid=$(service_field pid)
    if is_our_service "$pid"; then
        printf '%s' "$pid"
    fi
}

# Where to reach the service from here; one that listens everywhere is reached by loopback.
base_url() {
    local address
    address=$(service_field address)
    case $address in
        0.0.0.0:*) address=127.0.0.1:${address##*:} ;;
        '[::]:'*) address="[::1]:${address##*:}" ;;
    esac
    printf 'http://%s' "$address"
}

# Body and, on a last line, the status of GET /health; nothing if nobody answers.
ask_health() {
    local url
    url=$(base_url)/health
    if command -v curl >/dev/null; then
        curl --silent --noproxy '*' --max-time 5 --write-out '\n%{http_code}\n' "$url" || true
        return
    fi
    python3 - "$url" <<'PYTHON' || true
import sys, urllib.error, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
try:
    answer = opener.open(sys.argv[1], timeout=5)
except urllib.error.HTTPError as error:
    answer = error
except OSError:
    sys.exit(0)
print(answer.read().decode(), answer.status, sep="\n")
PYTHON
}

health_status() { ask_health | tail -n 1; }

# A build that came after the start of the process: another file now has the binary's name.
is_outdated() {
    [[ -e $RELEASE_BINARY ]] || return 1
    [[ $(stat -L -c %d:%i "/proc/$1/exe" 2>/dev/null) != $(stat -c %d:%i "$RELEASE_BINARY") ]]
}

say_running() {
    local pid=$1
    say "Cellblock is already running: $(base_url) (pid $pid)"
    if is_outdated "$pid"; then
        say "There is a newer build than the one that runs; ./ctl.sh restart takes it up. Variables survive that."
    fi
}

launch() {
    (umask 077 && mkdir -p -- "$WORK_ROOT_PATH") ||
        fail "WORK_ROOT=$WORK_ROOT_SETTING cannot be made: choose another folder"
    if [[ -f $LOG_FILE && $(stat -c %s "$LOG_FILE") -gt $LOG_LIMIT_BYTES ]]; then
        mv -f -- "$LOG_FILE" "$LOG_FILE.1"
    fi
    local log_size pid deadline degraded_since=
    log_size=$(stat -c %s "$LOG_FILE" 2>/dev/null || echo 0)
    (umask 077 && : >>"$LOG_FILE")
    setsid nohup "$RELEASE_BINARY" serve >>"$LOG_FILE" 2>&1 </dev/null &
    pid=$!
    deadline=$((SECONDS + START_LIMIT_SECS))
    while ((SECONDS < deadline)); do
        if ! kill -0 "$pid" 2>/dev/null; then
            wait "$pid" || true
            say "Cellblock ended at its start. Its last words:"
            tail -c "+$((log_size + 1))" "$LOG_FILE" | tail -n 15 | sed 's/^/  /'
            fail "mend what the last line says, then ./ctl.sh start again; ./ctl.sh doctor checks this machine"
        fi
        if [[ $(service_field pid) == "$pid" ]]; then
            case $(health_status) in
                200) return ;;
                503)
                    degraded_since=${degraded_since:-$SECONDS}
                    if ((SECONDS - degraded_since >= DEGRADED_LIMIT_SECS)); then
                        break
                    fi
                    ;;
            esac
        fi
        sleep 0.1
    done
    say "Cellblock runs (pid $pid) but is not healthy:"
    ask_health | head -n 1
    fail "see ./ctl.sh logs; ./ctl.sh stop ends it"
}

say_what_to_try() {
    local url key='' session='"user_id":"me","session_id":"first"'
    url=$(base_url)
    if [[ -n $(setting SANDBOX_API_KEY '') ]]; then
        key=" -H \"X-API-Key: \$SANDBOX_API_KEY\""
    fi
    cat <<TEXT

Cellblock is ready: $url (log: $LOG_FILE)

Things to try:
TEXT
    if [[ -n $key && ! -v SANDBOX_API_KEY ]]; then
        say "  export SANDBOX_API_KEY=...   # the key from .env"
    fi
    cat <<TEXT
  curl -s$key $url/v1/execute -H 'content-type: application/json' -d '{$session,"code":"x = 10"}'
  curl -s$key $url/v1/execute -H 'content-type: application/json' -d '{$session,"code":"x += 5"}'
  curl -s$key $url/v1/execute -H 'content-type: application/json' -d '{$session,"code":"x"}'
  curl -s$key $url/v1/execute -H 'content-type: application/json' -d '{$session,"code":"open(\"hello.txt\", \"w\").write(\"hello\")"}'
      the answer's artifacts[0].download_url is a presigned link to hello.txt
  curl -s $url/health
  curl -s$key $url/v1/sandbox/stop -H 'content-type: application/json' -d '{$session}'

./ctl.sh status, logs, restart and stop look after it.
TEXT
}

# What sandboxes are made of: an image if an engine is to make them, else packages for the embedded backend.
prepare_sandboxes() {
    local binary=$1 choice
    choice=$(setting SANDBOX_BACKEND auto)
    if [[ $choice != embedded ]] && engine_answers; then
        if build_image "$binary"; then
            return
        fi
        [[ $choice != docker ]] || fail "the sandbox image could not be built"
        say "The sandbox image could not be built; the embedded backend is used."
    fi
    "$binary" prepare
}

# Builds the sandbox image unless the one there is up to date. One that the operator named is the operator's to build.
build_image() {
    local binary=$1 image stamp
    image=$(setting SANDBOX_IMAGE "$OWN_IMAGE")
    if [[ $image != "$OWN_IMAGE" ]]; then
        docker image inspect "$image" >/dev/null 2>&1 && return
        say "SANDBOX_IMAGE=$image is not on this engine: pull or build it (FROM $OWN_IMAGE, which ./ctl.sh image builds)."
        return 1
    fi
    stamp=$("$binary" image-stamp)
    if [[ $(docker image inspect --format '{{index .Config.Labels "cellblock.image_stamp"}}' "$image" 2>/dev/null) == "$stamp" ]]; then
        return 0
    fi
    sandbox-image/build.sh "$image" "$stamp"
}

cmd_start() {
    require_rights start
    local pid
    pid=$(running_pid)
    if [[ -n $pid ]]; then
        say_running "$pid"
        return
    fi
    build_release
    prepare_sandboxes "$RELEASE_BINARY"
    launch
    say_what_to_try
}

cmd_stop() {
    stop_service
    if [[ -x $RELEASE_BINARY ]]; then
        say "To end sandboxes that are left: (cd $ROOT && WORK_ROOT=$WORK_ROOT_PATH $RELEASE_BINARY purge)"
    fi
}

stop_service() {
    local pid deadline
    pid=$(running_pid)
    if [[ -z $pid ]]; then
        say "Cellblock is not running (work root $WORK_ROOT_PATH)."
        return
    fi
    say "Stopping Cellblock (pid $pid)."
    kill -TERM "$pid"
    deadline=$((SECONDS + STOP_LIMIT_SECS))
    while is_our_service "$pid"; do
        ((SECONDS < deadline)) ||
            fail "it has not ended after $STOP_LIMIT_SECS s; ./ctl.sh logs says why, a second ./ctl.sh stop ends it at once"
        sleep 0.1
    done
    say "Stopped. Sandboxes stay alive: the next start finds them and their variables again, and removes those that have expired."
}

# The build comes first: if it fails, the old service still runs.
cmd_restart() {
    require_rights restart
    build_release
    prepare_sandboxes "$RELEASE_BINARY"
    stop_service
    launch
    say "Cellblock is ready: $(base_url)"
}

cmd_status() {
    if [[ -d $WORK_ROOT_PATH && ! -x $WORK_ROOT_PATH ]]; then
        fail "$WORK_ROOT_PATH belongs to another user: run this as root"
    fi
    local pid
    pid=$(running_pid)
    if [[ -z $pid ]]; then
        say "Cellblock is not running (work root $WORK_ROOT_PATH)."
        return 3
    fi
    say "Cellblock is running: $(base_url) (pid $pid)"
    ask_health | head -n 1
}

cmd_logs() {
    local lines=50
    if [[ ${1:-} == -n ]]; then
        lines=${2:-}
        [[ $lines =~ ^[0-9]+$ ]] || fail "logs -n needs a number of lines"
    elif [[ $# -gt 0 ]]; then
        fail "logs takes -n N and nothing else"
    fi
    [[ -r $LOG_FILE ]] || fail "there is no log at $LOG_FILE yet (or it is not yours to read)"
    exec tail -n "$lines" -F "$LOG_FILE"
}

cmd_doctor() {
    build_release
    exec "$RELEASE_BINARY" doctor
}

cmd_image() {
    engine_answers || fail "no Docker engine answers (or there is no docker client): apt-get install docker.io, start it, and let this user reach it"
    build_release
    sandbox-image/build.sh "$OWN_IMAGE" "$("$RELEASE_BINARY" image-stamp)"
}

FAILED=()
SKIPPED=()

# Runs one step; a failure is noted and the next step still runs.
step() {
    local name=$1
    shift
    say ""
    say "== $name"
    if "$@"; then
        return 0
    fi
    FAILED+=("$name")
    return 1
}

skip() {
    say "skipped: $*"
    SKIPPED+=("$*")
}

# Prints a ruff that works: the one on PATH, or one in a private folder, installed if need be.
find_ruff() {
    local private=$CACHE/tools/ruff
    if ruff --version >/dev/null 2>&1; then
        printf ruff
        return
    fi
    if [[ ! -x $private/bin/ruff ]]; then
        python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --upgrade --target "$private" \
            'ruff>=0.9' >&2 || return 1
    fi
    printf '%s' "$private/bin/ruff"
}

lint_rust() {
    if cargo fmt --version >/dev/null 2>&1; then
        step "cargo fmt" cargo fmt --all --check || true
    else
        skip "cargo fmt: not installed (rustup component add rustfmt)"
    fi
    if cargo clippy --version >/dev/null 2>&1; then
        local left_out=()
        has_cpp_compiler || left_out=(--exclude cellblock-fuzz)
        step "cargo clippy" cargo clippy --workspace "${left_out[@]}" --all-targets -- -D warnings || true
    else
        skip "cargo clippy: not installed (rustup component add clippy)"
    fi
}

lint_python() {
    local ruff folders=(bench/peers kernel sdk/python tests/battery tests/dependencies tests/kernel tests/mcp tests/openapi)
    if ! ruff=$(find_ruff); then
        skip "ruff: neither installed nor installable (no pip or no network)"
        return
    fi
    step "ruff check" "$ruff" check "${folders[@]}" || true
    step "ruff format" "$ruff" format --check "${folders[@]}" || true
}

lint_shell() {
    if command -v shellcheck >/dev/null; then
        step "shellcheck" shellcheck ctl.sh .ci/run fuzz/instrumented sandbox-image/build.sh || true
    else
        skip "shellcheck: not installed (apt-get install shellcheck)"
    fi
}

# Licences and sources of everything the service is built from.
lint_dependencies() {
    step "dependencies" python3 tests/dependencies/check.py || true
}

finish() {
    say ""
    say "== summary"
    if [[ ${#SKIPPED[@]} -gt 0 ]]; then
        printf 'skipped  %s\n' "${SKIPPED[@]}"
    fi
    if [[ ${#FAILED[@]} -gt 0 ]]; then
        printf 'FAILED   %s\n' "${FAILED[@]}"
        exit 1
    fi
    say "$1"
}

cmd_lint() {
    require_tools
    lint_rust
    lint_python
    lint_shell
    lint_dependencies
    finish "lint: all clean"
}

# Runs unittest and takes note of the tests it skipped.
noted_tests() {
    local name=$1 log outcome=0 reason
    shift
    log=$(mktemp)
    "$@" 2>&1 | tee "$log" || outcome=$?
    while read -r reason; do
        SKIPPED+=("$name: $reason")
    done < <(sed -nE "s/.* skipped ['\"](.*)['\"]\$/\\1/p" "$log" | sort | uniq -c | sed -E 's/^ *([0-9]+) /\1 x /')
    rm -f -- "$log"
    return "$outcome"
}

kernel_tests() {
    CELLBLOCK_TEST_PACKAGES=${1:-/nonexistent} \
        noted_tests "kernel tests" python3 -m unittest discover -v -s tests/kernel
}

# Python tests in folder $1 that drive the real binary, with the tools of folder $2, on backend $3.
binary_tests() {
    CELLBLOCK_BINARY=$DEV_BINARY CELLBLOCK_TEST_BACKEND=$3 PYTHONPATH=$CACHE/tools/$2 \
        noted_tests "$1 ($3)" python3 -W ignore::ResourceWarning -m unittest discover -v -s "$1"
}

# Installs a package (module $1, requirement $2) into a private folder if need be.
have_python_tool() {
    local folder=$CACHE/tools/$1
    PYTHONPATH=$folder python3 -c "import $1" 2>/dev/null && return
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --upgrade --target "$folder" "$2"
}

SDK_VENV=$CACHE/tools/sdk

# Makes the environment of the Python package's tests: what builds it, and what its examples are glue for.
sdk_tools() {
    local pip=("$SDK_VENV/bin/python" -m pip install --quiet --disable-pip-version-check)
    [[ -x $SDK_VENV/bin/maturin ]] || { python3 -m venv --clear "$SDK_VENV" && "${pip[@]}" 'maturin>=1.7,<2'; } || return 1
    "$SDK_VENV/bin/python" -c 'import langchain_core, autogen_core' 2>/dev/null ||
        "${pip[@]}" 'langchain-core>=0.3,<2' 'autogen-core>=0.6,<1' || say "the packages that two examples need could not be installed"
}

# As `pip install ./sdk/python` does it, but with cargo's profile $1 and the target folder of everything else.
sdk_install() {
    PATH=$SDK_VENV/bin:$PATH CELLBLOCK_BUILD_PROFILE=$1 "$SDK_VENV/bin/python" -m pip install --quiet \
        --disable-pip-version-check --no-build-isolation --no-deps --editable sdk/python
}

sdk_tests() {
    CELLBLOCK_TEST_BACKEND=$1 noted_tests "Python package ($1)" \
        "$SDK_VENV/bin/python" -W ignore::ResourceWarning -m unittest discover -v -s sdk/python/tests -p "$2"
}

prepare_packages() { "$DEV_BINARY" prepare | tee "$1"; }

# True if the tests that need a Docker engine can run. With CELLBLOCK_REQUIRE_DOCKER=1 that they cannot is a failure.
docker_is_ready() {
    if engine_answers; then
        step "sandbox image" build_image "$DEV_BINARY" && return
    elif [[ ${CELLBLOCK_REQUIRE_DOCKER:-0} == 1 ]]; then
        say ""
        say "== docker"
        say "CELLBLOCK_REQUIRE_DOCKER=1, but no Docker engine answers"
        FAILED+=("docker")
    else
        skip "tests of the docker backend: no Docker engine answers (apt-get install docker.io and start it)"
    fi
    return 1
}

# Groups of the battery that look at sandboxes, and so run on every backend; the others run once.
BATTERY_IN_SANDBOXES=(security::a_ security::b_ security::c_ security::f_)
FAULTS_IN_SANDBOXES=(faults::disk faults::docker faults::kills faults::vanished)

# Runs tests and keeps what they say as $1.log.
logged() {
    local name=$1
    shift
    mkdir -p -- "$TEST_LOGS"
    "$@" 2>&1 | tee "$TEST_LOGS/$name.log"
}

# The attack battery alone, and its table in docs/SECURITY.md written anew.
cmd_battery() {
    require_tools
    require_rights test
    rm -rf -- "$TEST_LOGS"
    step "build" cargo build || finish ""
    step "sandbox packages" prepare_packages /dev/null || true
    step "battery, units" logged units cargo test --lib case_ || true
    step "battery, embedded backend" logged embedded cargo test --test it -- case_ --skip docker:: || true
    if docker_is_ready; then
        step "battery, docker backend" logged docker env CELLBLOCK_TEST_BACKEND=docker \
            cargo test --test it -- "${BATTERY_IN_SANDBOXES[@]}" "${FAULTS_IN_SANDBOXES[@]}" || true
    fi
    step "table" python3 tests/battery/table.py "$TEST_LOGS" || true
    finish "battery: every case holds"
}

# Coverage-guided fuzzing of everything pure that reads hostile bytes: each target for $1 seconds. New inputs that reach new code are
# kept for the next run; one that breaks a property joins the corpus, where it is tried first ever after.
fuzz_targets() {
    local seconds=$1 program=$CARGO_TARGET_DIR/debug/cellblock-fuzz folder name log failed=0
    RUSTC_WORKSPACE_WRAPPER=$ROOT/fuzz/instrumented cargo build --package cellblock-fuzz || return 1
    log=$(mktemp)
    for folder in fuzz/corpus/*/; do
        name=$(basename "$folder")
        mkdir -p -- "$CACHE/fuzz/$name"
        if FUZZ_TARGET=$name CELLBLOCK_BINARY=$DEV_BINARY "$program" -max_total_time="$seconds" -timeout=20 \
            -rss_limit_mb=2048 -max_len=4096 -dict="fuzz/dictionaries/$name" -artifact_prefix="$folder"failing- \
            "$CACHE/fuzz/$name" "$folder" >"$log" 2>&1; then
            say "  $name: $(grep -o 'DONE.*' "$log")"
        else
            failed=1
            say "  $name: FAILED"
            tail -n 40 "$log"
        fi
    done
    rm -f -- "$log"
    return "$failed"
}

has_cpp_compiler() { command -v c++ >/dev/null || command -v g++ >/dev/null; }

cmd_fuzz() {
    local seconds=${1:-60}
    [[ $# -le 1 && $seconds =~ ^[1-9][0-9]*$ ]] || fail "fuzz takes a number of seconds for each target and nothing else"
    require_tools
    has_cpp_compiler || fail "libFuzzer is C++: apt-get install g++"
    step "build" cargo build || finish ""
    step "fuzz, $seconds s each" fuzz_targets "$seconds" || true
    finish "fuzz: every property holds"
}

cmd_test() {
    require_tools
    require_rights test
    local packages='' prepared
    lint_rust
    lint_python
    lint_shell
    lint_dependencies
    rm -rf -- "$TEST_LOGS"
    if step "build" cargo build; then
        prepared=$(mktemp)
        step "sandbox packages" prepare_packages "$prepared" || true
        packages=$(sed -nE 's/^Python packages are ready in (.*)$/\1/p' "$prepared")
        rm -f -- "$prepared"
        [[ -n $packages ]] || skip "tests with pandas and matplotlib: the packages could not be installed (no pip or no network)"
        step "cargo test, units" logged units cargo test --lib --bins --test bench || true
        if has_cpp_compiler; then
            step "fuzz targets" fuzz_targets "$FUZZ_SECONDS" || true
        else
            skip "fuzz targets: no C++ compiler for libFuzzer (apt-get install g++)"
        fi
        step "cargo test, embedded backend" logged embedded cargo test --test it -- --skip docker:: || true
        local mcp_client=no why="could not be installed (no pip, no network, or Python older than 3.10)"
        if have_python_tool mcp 'mcp>=1.9,<3'; then
            mcp_client=yes
            step "MCP client, embedded backend" binary_tests tests/mcp mcp embedded || true
        else
            skip "tests with the MCP client: the package mcp $why"
        fi
        if have_python_tool schemathesis 'schemathesis>=4,<5'; then
            step "API against its description" binary_tests tests/openapi schemathesis embedded || true
        else
            skip "tests of the API against its description: the package schemathesis $why"
        fi
        local sdk=no
        if sdk_tools; then
            step "Python package, build" sdk_install dev && sdk=yes && { step "Python package, both modes" sdk_tests embedded 'test_*.py' || true; }
        else
            skip "tests of the Python package: maturin could not be installed (no venv, no pip or no network)"
        fi
        if docker_is_ready; then
            [[ $sdk == no ]] || step "Python package, docker backend" sdk_tests docker 'test_scripts.py' || true
            [[ $mcp_client == no ]] || step "MCP client, docker backend" binary_tests tests/mcp mcp docker || true
            step "cargo test, docker backend" logged docker env CELLBLOCK_TEST_BACKEND=docker \
                cargo test --test it -- contract:: docker:: "${BATTERY_IN_SANDBOXES[@]}" "${FAULTS_IN_SANDBOXES[@]}" || true
        fi
        step "table of the attack battery" python3 tests/battery/table.py "$TEST_LOGS" --check || true
    fi
    step "kernel tests" kernel_tests "$packages" || true
    finish "test: all passed"
}

# Installs what Cellblock is compared with into an environment of its own, one peer at a time: one that cannot be had is left out.
install_peers() {
    local environment=$1 peer packages interpreter
    # The one of embedded sandboxes, so that nobody is ahead for being built better.
    interpreter=$("$RELEASE_BINARY" doctor | sed -nE 's/^ok +python +[0-9.]+ at //p') || true
    if [[ $(readlink -f "$environment/bin/python") != "${interpreter:-none}" ]]; then
        "${interpreter:-python3}" -m venv --clear "$environment" || python3 -m venv --clear "$environment" || return 1
    fi
    while read -r peer; do
        read -ra packages <<<"$peer"
        say "  $peer"
        "$environment/bin/python" -m pip install --quiet --disable-pip-version-check "${packages[@]}" </dev/null ||
            say "  could not be installed (no network?): it is left out unless an earlier one is there"
    done < <(grep -v '^#' bench/peers/requirements.txt)
}

cmd_bench() {
    require_tools
    require_rights bench
    local peers=$CACHE/tools/bench-peers
    # Builds the service too, the way it is measured.
    cargo bench --bench compare --no-run --locked
    "$RELEASE_BINARY" prepare
    if engine_answers; then
        build_image "$RELEASE_BINARY" || say "The sandbox image could not be built; docker is left out."
    fi
    if sdk_tools && sdk_install release; then
        "$SDK_VENV/bin/python" sdk/python/bench/overhead.py
    else
        say "The Python package could not be built; its figures are left out."
    fi
    say "Installing what Cellblock is compared with"
    if install_peers "$peers"; then
        export CELLBLOCK_BENCH_PYTHON=$peers/bin/python
    else
        say "There is no venv for Python (apt-get install python3-venv); the peers are left out unless they are installed already."
    fi
    # In place of this shell, so that whoever ends it ends the benchmark, which then cleans up.
    exec cargo bench --bench compare --locked -- "$@"
}

cmd_help() {
    cat <<'TEXT'
usage: ./ctl.sh <command>

  start      build, prepare what sandboxes are made of (once), run the service in the background
  stop       end the service; sandboxes stay alive for the next start
  restart    build, stop, start; variables survive
  status     is it running, where, and is it healthy
  logs       follow the log (-n N: begin with the last N lines)
  doctor     what this machine offers and what is missing
  image      build the sandbox image for the docker backend
  test       lint, then all tests
  battery    the attack battery alone; writes its table into docs/SECURITY.md
  fuzz       the fuzz targets alone, a minute each (fuzz N: N seconds each)
  lint       cargo fmt, clippy, ruff, shellcheck, licences and sources of dependencies
  bench      measure Cellblock and what could be used instead, into docs/PERFORMANCE.md (bench quick: only show that it works)
  help       this text

Settings come from the environment and .env; .env.example lists them.
TEXT
}

main() {
    local command=${1:-help}
    [[ $# -eq 0 ]] || shift
    case $command in
        start | stop | restart | status | doctor | image | test | battery | lint)
            [[ $# -eq 0 ]] || fail "$command takes no arguments"
            "cmd_$command"
            ;;
        logs) cmd_logs "$@" ;;
        fuzz) cmd_fuzz "$@" ;;
        bench)
            [[ $# -eq 0 || $* == quick ]] || fail "bench takes quick and nothing else"
            cmd_bench "$@"
            ;;
        help | -h | --help) cmd_help ;;
        *)
            cmd_help >&2
            fail "there is no command '$command'"
            ;;
    esac
}

main "$@"

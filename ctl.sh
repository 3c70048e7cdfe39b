#!/usr/bin/env bash
# Starts, stops, looks after and tests Cellblock. `./ctl.sh help` lists the commands.
# Works from any folder: its own folder is the project, and relative settings are relative to that.
set -euo pipefail

ROOT=$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")" && pwd)
cd -- "$ROOT"

CACHE=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/cellblock
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$CACHE/target}
# Files that Python or ruff leave in kernel/ would end up in the binary, which embeds that folder.
export PYTHONDONTWRITEBYTECODE=1 RUFF_NO_CACHE=true

RELEASE_BINARY=$CARGO_TARGET_DIR/release/cellblock
DEV_BINARY=$CARGO_TARGET_DIR/debug/cellblock
START_LIMIT_SECS=60
DEGRADED_LIMIT_SECS=20
STOP_LIMIT_SECS=30
LOG_LIMIT_BYTES=$((50 * 1024 * 1024))

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

require_root() {
    [[ $(id -u) -eq 0 ]] && return
    fail "the embedded backend makes containers and needs root. Run the service as root:
    sudo env \"PATH=\$PATH\" $ROOT/ctl.sh ${1:-start}"
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

cmd_start() {
    require_root start
    local pid
    pid=$(running_pid)
    if [[ -n $pid ]]; then
        say_running "$pid"
        return
    fi
    build_release
    "$RELEASE_BINARY" prepare
    launch
    say_what_to_try
}

cmd_stop() {
    require_root stop
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
    require_root restart
    build_release
    "$RELEASE_BINARY" prepare
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
    build_release
    "$RELEASE_BINARY" prepare
    say "There is no container image to build: this version has no docker backend. Sandboxes get the host's Python and these packages."
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
        step "cargo fmt" cargo fmt --check || true
    else
        skip "cargo fmt: not installed (rustup component add rustfmt)"
    fi
    if cargo clippy --version >/dev/null 2>&1; then
        step "cargo clippy" cargo clippy --all-targets -- -D warnings || true
    else
        skip "cargo clippy: not installed (rustup component add clippy)"
    fi
}

lint_python() {
    local ruff folders=(kernel tests/kernel)
    if ! ruff=$(find_ruff); then
        skip "ruff: neither installed nor installable (no pip or no network)"
        return
    fi
    step "ruff check" "$ruff" check "${folders[@]}" || true
    step "ruff format" "$ruff" format --check "${folders[@]}" || true
}

lint_shell() {
    if command -v shellcheck >/dev/null; then
        step "shellcheck" shellcheck ctl.sh .ci/run || true
    else
        skip "shellcheck: not installed (apt-get install shellcheck)"
    fi
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
    finish "lint: all clean"
}

kernel_tests() {
    local packages=$1 log outcome=0
    log=$(mktemp)
    CELLBLOCK_TEST_PACKAGES=${packages:-/nonexistent} \
        python3 -m unittest discover -v -s tests/kernel 2>&1 | tee "$log" || outcome=$?
    local reason
    while read -r reason; do
        SKIPPED+=("kernel tests: $reason")
    done < <(sed -nE "s/.* skipped ['\"](.*)['\"]\$/\\1/p" "$log" | sort | uniq -c | sed -E 's/^ *([0-9]+) /\1 x /')
    rm -f -- "$log"
    return "$outcome"
}

prepare_packages() { "$DEV_BINARY" prepare | tee "$1"; }

cmd_test() {
    require_tools
    require_root test
    local packages='' prepared
    lint_rust
    lint_python
    lint_shell
    if step "build" cargo build; then
        prepared=$(mktemp)
        step "sandbox packages" prepare_packages "$prepared" || true
        packages=$(sed -nE 's/^Python packages are ready in (.*)$/\1/p' "$prepared")
        rm -f -- "$prepared"
        [[ -n $packages ]] || skip "tests with pandas and matplotlib: the packages could not be installed (no pip or no network)"
        step "cargo test" cargo test || true
    fi
    step "kernel tests" kernel_tests "$packages" || true
    skip "Docker: not needed by this version"
    finish "test: all passed"
}

cmd_bench() {
    require_tools
    require_root bench
    cargo bench --bench overhead
}

cmd_help() {
    cat <<'TEXT'
usage: ./ctl.sh <command>

  start      build, install the sandboxes' Python packages (once), run the service in the background
  stop       end the service; sandboxes stay alive for the next start
  restart    build, stop, start; variables survive
  status     is it running, where, and is it healthy
  logs       follow the log (-n N: begin with the last N lines)
  doctor     what this machine offers and what is missing
  image      install the sandboxes' Python packages
  test       lint, then all tests
  lint       cargo fmt, clippy, ruff, shellcheck
  bench      measure what a call costs beside the code it runs
  help       this text

Settings come from the environment and .env; .env.example lists them.
TEXT
}

main() {
    local command=${1:-help}
    [[ $# -eq 0 ]] || shift
    case $command in
        start | stop | restart | status | doctor | image | test | lint | bench)
            [[ $# -eq 0 ]] || fail "$command takes no arguments"
            "cmd_$command"
            ;;
        logs) cmd_logs "$@" ;;
        help | -h | --help) cmd_help ;;
        *)
            cmd_help >&2
            fail "there is no command '$command'"
            ;;
    esac
}

main "$@"

#!/bin/sh
# Shows the program on a job of its own: scripts/demo.sh <path of probing>
# Starts examples/train.py, which knows nothing of Probing, and asks it things while it runs. The job ends with the demo.
set -eu
cd "$(dirname "$0")/.."
probing=$1
scratch=$(mktemp -d)
log=$scratch/log
job=
ranks=
served=
# A separate run directory, so that the demo leaves no dead run behind.
export PROBING_DIR="$scratch"

clean_up() {
    [ -z "$served" ] || XDG_RUNTIME_DIR=$scratch "$probing" serve --stop >/dev/null 2>&1 || true
    for each in $job $ranks; do kill "$each" 2>/dev/null || true; done
    rm -rf "$scratch"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

# Prints a command as a person would type it, then runs it.
show() {
    printf '\n$ probing'
    for word in "$@"; do
        case $word in
        *[!A-Za-z0-9._/=-]*) printf ' "%s"' "$word" ;;
        *) printf ' %s' "$word" ;;
        esac
    done
    printf '\n'
    "$probing" "$@"
}

kind="a small PyTorch job"
[ ! -e build/venv/installed/torch.missing ] || kind="a job in plain Python ($(cat build/venv/installed/torch.missing))"
echo "demo: starting $kind: examples/train.py"
build/venv/bin/python examples/train.py --seconds 120 >"$log" 2>&1 &
job=$!

# The first line of output means that training has begun. Importing PyTorch takes seconds.
waited=0
until grep -q step "$log" 2>/dev/null; do
    kill -0 $job 2>/dev/null || { echo "demo: the job did not start:" >&2 && cat "$log" >&2 && exit 1; }
    [ $waited -lt 300 ] || { echo "demo: the job said nothing for 30 s" >&2 && exit 1; }
    sleep 0.1
    waited=$((waited + 1))
done
echo "demo: it runs as process $job and says: $(head -n 1 "$log")"

show -t $job inject
# Live processes come first; a machine used for tests has hundreds of dead runs after them.
show list | head -n 8
show -t $job eval "print(f'step {step}, loss {loss:.4f}')"
show -t $job backtrace
mkdir -p build
show -t $job flamegraph -o build/flamegraph.svg --duration 2s
# memory_usage gets one row per second.
show -t $job tables
show -t $job query "SELECT count(*) AS rows, round(avg(memory_mb)) AS mb, max(threads) AS threads FROM memory_usage"
show -t $job detach

kill -0 $job || { echo "demo: the job is gone" >&2 && exit 1; }
[ -s build/flamegraph.svg ] || { echo "demo: there is no flame graph" >&2 && exit 1; }
printf '\ndemo: the flame graph is %s: open it in a browser' "$PWD/build/flamegraph.svg"
printf '\ndemo: the job trains on, undisturbed: %s\n' "$(tail -n 1 "$log")"

# Ranks end with their launcher. A wait is judged when it has lasted five seconds.
if [ -x build/venv/bin/torchrun ] && [ ! -e build/venv/installed/torch.missing ]; then
    printf '\ndemo: a job of two ranks that hangs: examples/hang.py\n'
    build/venv/bin/torchrun --standalone --nproc-per-node 2 examples/hang.py --after 100 >"$log.ranks" 2>&1 &
    ranks=$!
    waited=0
    until grep -q "stops at step" "$log.ranks"; do
        kill -0 $ranks 2>/dev/null && [ $waited -lt 600 ] || { cat "$log.ranks" >&2 && exit 1; }
        sleep 0.1
        waited=$((waited + 1))
    done
    sleep 6
    show -t $ranks diagnose || [ $? -eq 10 ] # there is a finding
    kill $ranks 2>/dev/null || true
fi

# A separate service, so that a running one is left alone.
if [ -x "$(dirname "$probing")/probing-serve" ]; then
    served=1
    address=$(XDG_RUNTIME_DIR=$scratch "$probing" serve --background | head -n 1)
    printf '\n$ probing serve\ndemo: the same in a browser: %s#/activity?target=%s\n' "$address" "$job"
    if [ -t 0 ] && [ -t 1 ]; then
        printf 'demo: Enter ends the job and the service '
        read -r _ || true
    fi
fi

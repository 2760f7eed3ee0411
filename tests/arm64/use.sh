# Read by short.sh and installed.sh: the commands as a person gives them, once each.

# $1: the folder of the programs; $2: a program of musl that they can probe. In a new folder, on Debian's Python and on $2.
use_programs() (
    cd "$(mktemp -d)"
    cat >job.py <<'END_OF_JOB'
import time
answer = 42
def training_step():
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
training_step()
END_OF_JOB
    python3 job.py >job.out &
    job=$! musl=
    trap 'kill $job $musl' EXIT
    until grep -q ready job.out; do sleep 0.2; done
    "$1/probing" version
    "$1/probing" -t $job inject
    "$1/probing" -t $job backtrace | tee stack
    grep -q training_step stack
    [ "$("$1/probing" -t $job eval 'print(answer)')" = 42 ]
    "$1/probe" -t $job query --format csv 'SELECT count(*) > 0 AS there, 6 * 7 AS x FROM python.backtrace' | tee rows
    [ "$(tail -n 1 rows)" = true,42 ]
    "$1/probing" -t $job detach
    kill -0 $job
    "$2" 1 >musl.out & # only now: it takes a processor for itself
    musl=$!
    until grep -q ready musl.out; do sleep 0.2; done
    "$1/probing" -t $musl inject
    "$1/probing" -t $musl config probing.sample_rate
    "$1/probing" -t $musl detach
    kill -0 $musl
)

"""One rank is in a computation in C, without the GIL, that takes hours."""
TRUTH = {"kind": "loop", "cause": "native", "function": "derive_key", "not": ["deadlock", "gil_held"]}
NAMES = {"derive_key": ["derive_key", "fingerprint", "seal"]}
SETTLE = 12
import hashlib
import kit


def derive_key(rounds):
    return hashlib.pbkdf2_hmac("sha256", b"dataset", b"salt", rounds)  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        if job.now(step):
            derive_key(2**31 - job.random.randrange(1, 1000))
        kit.train_step(net, optimizer)


main()

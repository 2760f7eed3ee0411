"""A thread of one rank matches a regular expression that backtracks for ever, and keeps the GIL meanwhile."""
TRUTH = {"kind": "gil_held", "cause": ["regex", "native", None], "function": "check_name", "not": ["deadlock"]}
NAMES = {"check_name": ["check_name", "clean_text", "parse_line"]}
import re
import threading
import kit


def check_name(text):
    return re.match(r"(\w+\s?)+$", text)  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        if job.now(step):
            text = "a" * job.random.randrange(40, 60) + "!"
            threading.Thread(target=check_name, args=(text,),
                             name=job.name("tokens", "filter", "prep"), daemon=True).start()
        kit.train_step(net, optimizer)


main()

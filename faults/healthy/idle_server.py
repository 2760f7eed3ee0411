"""An inference server without a request: it waits for one, with idle threads."""
TRUTH = {"kind": None}
RANKS = 1
import http.server
import threading
import kit


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)


def main():
    job = kit.start()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=threading.Event().wait, name="stopper", daemon=True).start()
    job.begins()
    server.serve_forever()


main()

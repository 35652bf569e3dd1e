"""The load generator and the mock worker of `tools/bench_mesh`, compiled and run, with exact counts."""

import shutil
import threading
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from mesh_bench.native import LoadTarget, compiled, run_load
from mesh_bench.points import BenchPoint
from mesh_bench.systems import RouterSystem

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
ANSWERED = 10  # requests; later ones stay open, so that the counts do not depend on speed
CONTENT = b'data: {"choices":[{"delta":{"content":" word"}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":%d}}\n\n'
DONE = b"data: [DONE]\n\n"


@contextmanager
def server(pieces, status=200):
    """Answer the first `ANSWERED` requests with the chunks `pieces` and leave the others open."""
    served, lock, end = [], threading.Lock(), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            with lock:
                served.append(self.path)
                is_last = len(served) > ANSWERED
            if is_last:
                end.wait(30)
                return
            self.send_response(status)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for piece in [*pieces, b""]:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))

        def log_message(self, *_):
            pass

    found = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.daemon_threads = True
    threading.Thread(target=found.serve_forever, daemon=True).start()
    try:
        yield found.server_address[1]
    finally:
        end.set()
        found.shutdown()
        found.server_close()


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    return tmp_path_factory.mktemp("programs")


def load(programs, port, tokens, **options):
    class WithoutWarmup(BenchPoint):
        warmup_s = 0.0

    target = LoadTarget(port=port, model="mock", header="", processes={})
    point = WithoutWarmup(name="test", step_ms=0.0, tokens=tokens, concurrent=4, seconds=1.5, **options)
    return run_load(compiled("load", programs), target, point)


def test_merged_tokens_are_counted_by_their_usage(programs):
    with server([CONTENT * 2, CONTENT, USAGE % 6, DONE]) as port:
        found = load(programs, port, 6)
    assert (found.requests, found.events, found.tokens) == (ANSWERED, 3 * ANSWERED, 6 * ANSWERED)
    assert (found.errors, found.wrong, found.overrun) == (0, 0, 0)


def test_lines_and_multibyte_chunks_may_be_cut_anywhere(programs):
    stream = CONTENT * 3 + DONE
    with server([stream[at : at + 7] for at in range(0, len(stream), 7)]) as port:
        found = load(programs, port, 3)
    assert (found.requests, found.events, found.errors, found.wrong) == (ANSWERED, 3 * ANSWERED, 0, 0)


def test_an_answer_of_another_length_is_wrong(programs):
    with server([CONTENT, USAGE % 1, DONE]) as port:
        found = load(programs, port, 6)
    assert (found.requests, found.wrong) == (ANSWERED, ANSWERED)


@pytest.mark.parametrize(("pieces", "status"), [([CONTENT], 200), ([DONE], 503)], ids=["unfinished", "rejected"])
def test_a_rejected_or_unfinished_answer_is_an_error(programs, pieces, status):
    with server(pieces, status) as port:
        found = load(programs, port, 1)
    assert (found.requests, found.errors) == (0, ANSWERED)


def test_a_json_answer_is_counted_once(programs):
    with server([b'{"choices":[],"usage":{"completion_tokens":1}}']) as port:
        found = load(programs, port, 1, is_stream=False)
    # The chunked body has no final newline, and its usage is read all the same.
    assert (found.requests, found.wrong, found.errors, found.events) == (ANSWERED, 0, 0, 0)


@pytest.mark.parametrize("step_ms", [0.05, 5.0])
@pytest.mark.parametrize("is_stream", [True, False])
def test_the_mock_worker_sends_the_tokens_asked_for(programs, tmp_path, step_ms, is_stream):
    with closing(RouterSystem(None, Path(), compiled("upstream", programs), tmp_path)) as system:
        target = system.at_step(step_ms)
        point = BenchPoint(name="test", step_ms=step_ms, tokens=7, concurrent=4, seconds=0.3, is_stream=is_stream)
        found = run_load(compiled("load", programs), target, point)
    assert found.requests > 0
    assert (found.errors, found.wrong, found.overrun) == (0, 0, 0)

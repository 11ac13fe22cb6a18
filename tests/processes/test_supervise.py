"""Groups of workers: one fails, hangs or is killed, none is left behind; all start again, at most so often."""

import errno
import functools
import io
import os
import signal
import sys
import threading
import time

import pytest

from heed.errors import ClusterError
from heed.processes import supervise
from heed.processes.supervise import LOST, Exit, Worker, run_group
from tests.processes.work import run_code

SLEEP = "import time; time.sleep(60)"


def worker(number, code, **options):
    return Worker(f"worker {number}", functools.partial(run_code, code), **options)


def test_all_succeed(tmp_path):
    logs = [tmp_path / "logs" / f"{i}.log" for i in range(2)]
    code = "import os; print(os.environ['PART']); channel.send({'part': os.environ['PART']})"
    outcome = run_group(
        [worker(i, code, environment={"PART": str(i)}, log=log) for i, log in enumerate(logs)]
    )
    assert outcome.failure is None
    assert [(end.code, end.said) for end in outcome.exits] == [(0, {"part": x}) for x in "01"]
    assert [log.read_text() for log in logs] == ["0\n", "1\n"]


def test_the_first_failure_stops_all_and_is_the_one_reported(tmp_path):
    log = tmp_path / "1.log"
    log.write_text("of another day\n")
    code = "import sys; print('bye'); channel.send('no space'); sys.exit(3)"
    began = time.monotonic()
    outcome = run_group([worker(0, SLEEP), worker(1, code, log=log)])
    assert time.monotonic() - began < 10
    assert outcome.failure == Exit("worker 1", 3, "ended with exit status 3", "no space")
    assert log.read_text() == "of another day\nbye\nheed: no space\n"
    assert outcome.failure.describe() == "worker 1: no space"
    assert outcome.exits[0].code == -signal.SIGKILL
    assert outcome.exits[0].stopped


def test_without_a_reason_the_last_line_of_the_log_is_it():
    outcome = run_group([worker(0, "1 / 0")])
    assert outcome.failure.describe() == "worker 0: ZeroDivisionError: division by zero"


def test_a_follower_is_not_the_cause():
    follower = "import sys; sys.exit(75)"
    cause = "import os, time; time.sleep(0.3); os.kill(os.getpid(), 9)"
    outcome = run_group([worker(0, follower), worker(1, cause)])
    assert outcome.failure.describe() == "worker 1 was killed by SIGKILL"


def test_a_worker_that_others_lost_because_it_hung_is_the_cause(tmp_path, monkeypatch):
    monkeypatch.setattr(supervise, "_LATE", 2.0)
    file = tmp_path / "stopped"
    stopped = f"import os; open({str(file)!r}, 'w'); os.kill(os.getpid(), 19)"
    late = (
        "import os, sys, time\n"
        f"while not os.path.exists({str(file)!r}): time.sleep(0.1)\n"
        "time.sleep(3); sys.exit(75)"
    )
    workers = [worker(0, late), worker(1, stopped)]
    outcome = run_group(workers, silence=60)
    assert "worker 1 gave no sign of life for" in outcome.failure.describe()


def test_a_worker_that_hangs_is_found_and_killed():
    stopped = "import os, time; time.sleep(0.2); os.kill(os.getpid(), 19)"
    began = time.monotonic()
    outcome = run_group([worker(0, SLEEP), worker(1, stopped)], silence=5)
    assert 5 < time.monotonic() - began < 20
    assert outcome.failure.name == "worker 1"
    assert "gave no sign of life for" in outcome.failure.describe()


def test_signals_reach_every_worker(tmp_path):
    code = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(7)); "
    workers = [
        worker(i, f"{code}open({str(tmp_path / str(i))!r}, 'w'); time.sleep(60)") for i in range(2)
    ]

    def send():
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=send).start()
    outcome = run_group(workers)
    assert outcome.signal == signal.SIGTERM
    assert [end.code for end in outcome.exits] == [7, 7]
    assert outcome.failure is None


class _Gone(io.StringIO):
    """The stderr of a terminal that is closed."""

    def write(self, text):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_workers_go_on_when_their_output_cannot_be_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", _Gone())
    log = tmp_path / "0.log"
    code = "import time; print(1, flush=True); time.sleep(0.5); print(2); channel.send('saved')"
    outcome = run_group([worker(0, code, log=log, show=True)])
    assert [(end.code, end.said) for end in outcome.exits] == [(0, "saved")]
    assert log.read_text() == "1\n2\n"


def test_a_log_that_cannot_be_written_leaves_no_worker(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        run_group([worker(0, SLEEP), worker(1, SLEEP, log=tmp_path / "file" / "1.log")])


def job(*ends):
    """Make two workers: the second ends as the code for this start says, the first loses it then."""
    starts = []

    def make_workers():
        starts.append(ends[min(len(starts), len(ends) - 1)])
        first = f"import sys, time; time.sleep(0.2); sys.exit({LOST if starts[-1] else 0})"
        return [worker(0, first), worker(1, starts[-1])]

    return make_workers, starts


KILLED = "import os; os.kill(os.getpid(), 9)"


def test_it_starts_again_until_it_succeeds():
    make_workers, starts = job(KILLED, KILLED, "")
    notes = []
    assert supervise.supervise(make_workers, 3, notes.append).failure is None
    assert starts == [KILLED, KILLED, ""]
    assert notes == [
        f"worker 1 was killed by SIGKILL; starting again from the last checkpoint ({n} of 3 restarts)"
        for n in (1, 2)
    ]


def test_it_gives_up():
    make_workers, starts = job(KILLED)
    with pytest.raises(ClusterError, match="gave up after 1 restarts: worker 1 was killed"):
        supervise.supervise(make_workers, 1, lambda _: None)
    assert len(starts) == 2


def test_an_error_of_the_user_is_final():
    make_workers, starts = job("import sys; channel.send('the disk is full'); sys.exit(1)")
    with pytest.raises(ClusterError, match=r"^worker 1: the disk is full$"):
        supervise.supervise(make_workers, 3, lambda _: None)
    assert len(starts) == 1

"""Worker processes: one fails, hangs or is killed, and none is left behind."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from heed.processes import supervise
from heed.processes.supervise import Exit, Worker, run_processes

SLEEP = "import time; time.sleep(60)"
BEAT = "from heed.processes.supervise import start_heartbeat as b; b(); "


def worker(number, code, **options):
    return Worker(f"worker {number}", [sys.executable, "-c", code], **options)


def test_all_succeed(tmp_path):
    logs = [tmp_path / "logs" / f"{i}.log" for i in range(2)]
    code = "import os; print(os.environ['PART'], os.environ.get('GONE'))"
    os.environ["GONE"] = "here"
    try:
        outcome = run_processes(
            [
                worker(i, code, environment={"PART": str(i), "GONE": None}, log=log)
                for i, log in enumerate(logs)
            ]
        )
    finally:
        del os.environ["GONE"]
    assert outcome.failure is None
    assert [end.code for end in outcome.exits] == [0, 0]
    assert [log.read_text() for log in logs] == ["0 None\n", "1 None\n"]


def test_the_first_failure_stops_all_and_is_the_one_reported(tmp_path):
    log = tmp_path / "1.log"
    log.write_text("heed: of another day\n")
    code = "import sys; print('heed: no space', file=sys.stderr); print('bye', file=sys.stderr); sys.exit(3)"
    began = time.monotonic()
    outcome = run_processes([worker(0, SLEEP), worker(1, code, log=log)])
    assert time.monotonic() - began < 10
    assert outcome.failure == Exit("worker 1", 3, "no space")
    assert outcome.failure.describe() == "worker 1: no space"
    assert outcome.exits[0].code == -signal.SIGTERM
    assert outcome.exits[0].stopped


def test_a_report_needs_no_log():
    code = (
        BEAT
        + "from heed.processes.supervise import report as r; r('full. disk'); print('x'); 1 / 0"
    )
    outcome = run_processes([worker(0, code)])
    assert outcome.failure.describe() == "worker 0: full. disk"


def test_a_worker_that_ignores_sigterm_is_killed():
    stubborn = "import signal; signal.signal(15, signal.SIG_IGN); " + SLEEP
    late = "import time, sys; time.sleep(0.5); sys.exit(1)"
    outcome = run_processes([worker(0, stubborn), worker(1, late)], grace=0.3)
    assert outcome.exits[0].code == -signal.SIGKILL
    assert outcome.failure.name == "worker 1"


def test_a_follower_is_not_the_cause():
    follower = "import sys; sys.exit(75)"
    cause = "import os, time; time.sleep(0.3); os.kill(os.getpid(), 9)"
    outcome = run_processes([worker(0, follower), worker(1, cause)], follower_status=75)
    assert outcome.failure.describe() == "worker 1 was killed by SIGKILL"


def test_a_worker_that_others_lost_because_it_hung_is_the_cause(tmp_path, monkeypatch):
    monkeypatch.setattr(supervise, "_LATE", 2.0)
    file = tmp_path / "stopped"
    stopped = f"{BEAT}import os; open({str(file)!r}, 'w'); os.kill(os.getpid(), 19)"
    late = (
        f"{BEAT}import os, sys, time\n"
        f"while not os.path.exists({str(file)!r}): time.sleep(0.1)\n"
        "time.sleep(3); sys.exit(75)"
    )
    workers = [worker(0, late), worker(1, stopped)]
    outcome = run_processes(workers, silence=60, grace=0, follower_status=75)
    assert "worker 1 hung: it gave no sign of life for" in outcome.failure.describe()


def test_a_worker_that_hangs_is_found_and_killed():
    stopped = BEAT + "import os, time; time.sleep(0.2); os.kill(os.getpid(), 19)"
    began = time.monotonic()
    outcome = run_processes([worker(0, BEAT + SLEEP), worker(1, stopped)], silence=5)
    assert 5 < time.monotonic() - began < 20
    assert outcome.failure.name == "worker 1"
    assert "hung: it gave no sign of life for" in outcome.failure.describe()


def test_a_command_that_does_not_exist_says_so():
    outcome = run_processes([Worker("worker 0", ["surely-not-here"])])
    assert outcome.failure.describe() == (
        "worker 0: cannot start surely-not-here: No such file or directory"
    )


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
    outcome = run_processes(workers)
    assert outcome.signal == signal.SIGTERM
    assert [end.code for end in outcome.exits] == [7, 7]
    assert outcome.failure is None


def test_a_log_that_cannot_be_written_leaves_no_worker(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        run_processes([worker(0, SLEEP), worker(1, SLEEP, log=tmp_path / "file" / "1.log")])


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
def test_no_worker_outlives_a_supervisor_that_is_killed(tmp_path):
    code = (
        "import sys; from heed.processes.supervise import *; "
        "w = [sys.executable, '-c', 'import os, time; print(os.getpid(), flush=True); time.sleep(60)'];"
        "run_processes([Worker('w', w, show=True)])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as parent:
        parent.stdout.readline()
        parent.kill()
        parent.communicate(timeout=10)  # ends once the worker, which has the same output, has ended

"""Workers meet before a job; a problem is said by all of them, in one line."""

import contextlib
import json
import socket
import threading
import time

import pytest

from heed.errors import ClusterError
from heed.processes.cluster import Cluster, local_addresses
from heed.processes.meeting import meet


def hold(clusters, facts=None, wait=3.0, act=None):
    """All workers meet, each in a thread: the result of each, or its error."""
    results = {}

    def come(number, cluster):
        try:
            with meet(cluster, (facts or {}).get(number, {"x": 1}), wait) as meeting:
                meeting.follow(act or (lambda: None))
            results[number] = "met"
        except Exception as error:
            results[number] = f"{type(error).__name__}: {error}"

    threads = [threading.Thread(target=come, args=one) for one in enumerate(clusters)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[number] for number in range(len(clusters))]


def made(count):
    addresses = local_addresses(count)
    return [Cluster(addresses, rank) for rank in range(count)]


def test_all_meet_and_the_chief_alone_acts():
    done = []
    assert hold(made(3), act=lambda: done.append(1)) == ["met"] * 3
    assert done == [1]


def test_different_facts_are_named_by_all():
    facts = {
        number: {"run": {"training": {"steps": 20 + (number == 2), "seed": 1}}}
        for number in range(3)
    }
    line = "ClusterError: worker 2 differs from worker 0: run.training.steps is 20 on worker 0 and 21 there"
    assert hold(made(3), facts) == [line] * 3  # whoever comes last, too


def test_a_worker_that_does_not_come():
    addresses = local_addresses(3)
    line = f"ClusterError: worker 2 ({addresses[2]}) did not come in time"
    assert hold([Cluster(addresses, 0), Cluster(addresses, 1)], wait=1) == [line, line]


def test_a_chief_that_does_not_come():
    addresses = local_addresses(2)
    (line,) = hold([Cluster(addresses, 1)], wait=1)
    assert line == f"ClusterError: worker 0 ({addresses[0]}) cannot be reached: Connection refused"


def test_a_port_in_use():
    clusters = made(2)
    with socket.socket() as other:
        other.bind(("127.0.0.1", int(clusters[1].addresses[1].split(":")[1])))
        other.listen()
        chief, worker = hold(clusters, wait=1)
    assert "cannot listen at its port: Address already in use" in worker
    assert "did not come in time" in chief


def test_two_processes_of_one_rank():
    addresses = local_addresses(3)
    with contextlib.ExitStack() as stack:
        thread = threading.Thread(target=hold, args=([Cluster(addresses, 0)],))
        thread.start()
        answers = []
        for number in range(2):
            line = stack.enter_context(socket.create_connection(_await(addresses[0]), 5))
            facts = {"addresses": list(addresses), "x": 1}
            hello = {"rank": 1, "process": f"process {number}", "facts": facts}
            line.sendall(json.dumps(hello).encode() + b"\n")
            answers.append(line)
        assert b"two processes are worker 1: process 0 and process 1" in answers[1].recv(999)
        thread.join()


def _await(address):
    host, port = address.split(":")
    for _ in range(100):
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 5):
            return host, int(port)
        time.sleep(0.05)
    raise TimeoutError


def test_strangers_do_not_matter():
    chief, worker = made(2)
    results = []
    thread = threading.Thread(target=lambda: results.extend(hold([chief])))
    thread.start()
    place = _await(chief.addresses[0])  # which connects, and says nothing
    with socket.create_connection(place) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\n\n")
        results += hold([worker])
    thread.join()
    assert results == ["met", "met"]


def test_an_error_of_the_chief_reaches_all():
    clusters = made(2)

    def fail():
        raise ValueError("the folder is full")

    chief, worker = hold(clusters, act=fail)
    assert chief == "ValueError: the folder is full"
    assert worker == f"ClusterError: {clusters[0].name(0)}: the folder is full"


def test_a_meeting_is_a_block():
    (cluster,) = made(1)
    with meet(cluster, {}) as meeting:
        meeting.follow(lambda: None)
    with pytest.raises(ClusterError, match="did not come"), meet(made(2)[0], {}, wait=0.1):
        pass

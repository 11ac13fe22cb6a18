"""Clients that repeat what gets no answer, as a client may: a translation changes nothing. It imports no TensorFlow."""

import collections
import http.client
import json
import threading
import time


def wait_until(true, seconds=60):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.002)


class Load:
    """Clients on threads that send requests until `stop()`.

    Attributes:
        answers: the translations of each text: one, if none is wrong.
        count: answered requests.
        repeats: requests that were repeated, by reason.
        lost: requests without an answer after many tries.
    """

    def __init__(self, address, clients=4, path="/translate"):
        self._address, self._path = address, path
        self.answers = collections.defaultdict(set)
        self.repeats = collections.Counter()
        self.count = self.lost = 0
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(clients)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait(self, more, seconds=120):
        """Wait for this many more answers."""
        wanted, end = self.count + more, time.monotonic() + seconds
        while self.count < wanted:
            assert time.monotonic() < end, (self.count, self.repeats)
            time.sleep(0.01)

    def _run(self, number):
        connections = []
        text = number
        while not self._stop.is_set():
            text = (text + 7) % 97
            for _ in range(300):
                try:
                    answer = self._ask(connections, str(text))
                    break
                except (OSError, http.client.HTTPException) as error:
                    while connections:
                        connections.pop().close()
                    with self._lock:
                        self.repeats[f"{type(error).__name__}: {error}"] += 1
                    time.sleep(0.05)
            else:
                with self._lock:
                    self.lost += 1
                continue
            with self._lock:
                self.count += 1
                self.answers[str(text)].add(answer)
        while connections:
            connections.pop().close()

    def _ask(self, connections, text):
        if not connections:
            connections.append(http.client.HTTPConnection(*self._address, timeout=30))
        body = json.dumps({"texts": [text]})
        connections[0].request("POST", self._path, body, {"Content-Type": "application/json"})
        answer = connections[0].getresponse()
        data = answer.read()
        if answer.status != 200:
            raise OSError(f"status {answer.status}")
        return json.loads(data)["translations"][0]["text"]

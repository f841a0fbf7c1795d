"""What a listener answers, and what it does not do."""

import pytest

from hpcrl.doctor.peer import Append, Asker, Attempt, Churn, Clock, Hello, Listener, Make, PeerReport, whole
from hpcrl.wire.address import Network


@pytest.fixture
def listener(tmp_path):
    made = Listener(1, Network(), tmp_path)
    yield made
    made.close()


def test_a_torn_content_is_recognised():
    assert whole(b"a" * 4096)
    assert not whole(b"a" * 4095)
    assert not whole(b"a" * 2048 + b"b" * 2048)


def test_a_stranger_gets_no_answer(listener):
    stranger = Asker(Hello(1, "127.0.0.1", listener.hello.port, "guessed"))
    with pytest.raises(ConnectionResetError):
        stranger.ask(Clock())


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "..", "", "a/b"])
@pytest.mark.parametrize("wish", [Make, Append, lambda name: Attempt("create", name), lambda n: Churn(n, 1)])
def test_nothing_outside_the_folder_is_touched(tmp_path, listener, name, wish):
    answer = Asker(listener.hello).ask(wish(name))
    assert not answer.done and answer.error
    assert not (tmp_path.parent / "outside").exists()


def test_a_reader_whose_peer_dies_says_so(tmp_path, listener):
    asker = Asker(listener.hello)
    asker._socket.shutdown(2)
    with pytest.raises(OSError):
        asker.ask(Clock())
    assert isinstance(Asker(listener.hello).ask(Clock()), PeerReport), "the listener goes on"

"""How long a worker waits for its broker, and when it tries another connection."""

from naiad.worker.presence import WELCOME_WAIT_MAX_S, BrokerPresence, Verdict


def test_it_waits_for_a_broker_only_so_long() -> None:
    presence = BrokerPresence(100, absence_max_s=60)
    assert not presence.said_hello(101)
    assert presence.verdict(160, is_connected=False) is Verdict.WAIT
    assert presence.verdict(161, is_connected=False) is Verdict.GIVE_UP


def test_the_time_counts_from_the_loss_of_a_good_connection() -> None:
    presence = BrokerPresence(0, absence_max_s=60)
    presence.said_hello(0)
    presence.was_welcomed()
    assert presence.absence_s(1000) == 0
    assert presence.said_hello(1000)
    assert not presence.said_hello(1030), "the one at 1000 was no good connection"
    assert presence.absence_s(1050) == 50
    assert presence.verdict(1061, is_connected=True) is Verdict.GIVE_UP


def test_a_connection_without_welcome_is_tried_anew() -> None:
    presence = BrokerPresence(0)
    presence.said_hello(5)
    late = 5 + WELCOME_WAIT_MAX_S + 1
    assert presence.verdict(late, is_connected=False) is Verdict.WAIT
    assert presence.verdict(late, is_connected=True) is Verdict.CONNECT_ANEW

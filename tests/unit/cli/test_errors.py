import pytest

from headrace.cli.errors import explain
from headrace.errors import ErrorCode, KafkaError, ProtocolError


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic a does not exist"),
            "topic a does not exist; list topics with `headrace topics list`, create one with"
            " `headrace topics create NAME`",
        ),
        (KafkaError(ErrorCode.INVALID_CONFIG, "x", advice="do y."), "x; do y"),
        (
            KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "'a b' is no name"),
            "'a b' is no name (INVALID_TOPIC_EXCEPTION)",
        ),
        (KafkaError(ErrorCode.NOT_CONTROLLER), "not controller (NOT_CONTROLLER)"),
        (ProtocolError("two\n lines."), "two lines"),
    ],
)
def test_an_error_says_what_is_wrong_and_what_to_do(error: KafkaError, line: str) -> None:
    assert explain(error) == line

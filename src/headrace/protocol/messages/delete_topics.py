"""Tables of the DeleteTopics API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    int16,
    int32,
    string,
    uuid,
)
from headrace.types import ZERO_UUID


class DeleteTopicState(Struct):
    name: str | None = string("6+", nullable="6+", default=None)
    topic_id: bytes = uuid("6+", default=ZERO_UUID)


class DeleteTopicsRequest(Message, api_key=20, versions=(1, 6), flexible_from=4):
    topics: list[DeleteTopicState] = array(DeleteTopicState, "6+", default=...)
    topic_names: list[str] = array(string, "1-5", default=...)
    timeout_ms: int = int32(default=0)


class DeletableTopicResult(Struct):
    name: str | None = string(nullable="6+", default="")
    topic_id: bytes = uuid("6+", default=ZERO_UUID)
    error_code: int = int16(default=0)
    error_message: str | None = string("5+", nullable="5+", default=None)


class DeleteTopicsResponse(Message, api_key=20, versions=(1, 6), flexible_from=4):
    throttle_time_ms: int = int32(default=0)
    responses: list[DeletableTopicResult] = array(DeletableTopicResult, default=...)

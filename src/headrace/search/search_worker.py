"""The program of a search in a process of its own: `python -m headrace.search.search_worker`.

It reads the request as one line from its input, and writes an update on each line of its output. It
gives way to other processes of the machine, and ends when nobody reads its output any more.
"""

import gc
import os
import signal
import sys

NICENESS = 10


def main() -> int:
    """Search as the first line of the input says."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    # A terminal interrupts the whole group of processes; this one is ended by its parent.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Importing is most of the start, leaves no garbage, and is faster without looking for any.
    gc.disable()
    from headrace.client.consumer.consumer import Consumer  # noqa: PLC0415
    from headrace.clock import SystemClock  # noqa: PLC0415
    from headrace.errors import HeadraceError  # noqa: PLC0415
    from headrace.search.search_messages import (  # noqa: PLC0415
        decode_order,
        encode_error,
        encode_update,
    )
    from headrace.search.topic_search import (  # noqa: PLC0415
        TopicSearch,
        search_consumer_config,
    )

    gc.freeze()
    gc.enable()
    order = decode_order(sys.stdin.buffer.readline())
    output = sys.stdout.buffer
    try:
        with Consumer(**search_consumer_config(order.client)) as consumer:
            search = TopicSearch(consumer, order.request, SystemClock())
            # The start is short, and somebody waits for the first records.
            os.nice(NICENESS)
            for update in search.updates():
                output.writelines(encode_update(update, order.shown_bytes))
                output.flush()
    except HeadraceError as error:
        output.write(encode_error(error))
        output.flush()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

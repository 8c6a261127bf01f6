"""The Python of the seeds, to the letter: what the client promises to run.

Seed 003 is a system design, seed 004 an exercise in it; the others have no Python. Each
snippet stands under the heading it has there.
"""

# Seed 003, "1. Round-Robin".
ROUND_ROBIN = """\
partition = hash(message_id) % num_partitions
"""

# Seed 003, "2. Key-Based (Hash Partitioning)".
KEY_HASH = """\
partition = hash(message_key) % num_partitions
"""

# Seed 003, "Auto-Commit (At-Least-Once)".
AUTO_COMMIT = """\
consumer = Consumer(
    group_id='my-group',
    enable_auto_commit=True,
    auto_commit_interval_ms=5000
)

for message in consumer:
    process(message)
    # Offset auto-committed every 5 seconds
"""

# Seed 003, "Manual Commit (At-Least-Once)".
MANUAL_COMMIT = """\
consumer = Consumer(
    group_id='my-group',
    enable_auto_commit=False
)

for message in consumer:
    process(message)
    consumer.commit()  # Commit after processing
"""

# Seed 003, "Transactional Commit (Exactly-Once)".
TRANSACTIONAL_COMMIT = """\
# Store offset with processed data in a transaction
with database.transaction():
    process_and_save(message)
    save_offset(message.offset)
"""

# Seed 003, "Maintaining Order with Multiple In-Flight Requests".
IDEMPOTENT_PRODUCER = """\
producer = Producer(
    enable_idempotence=True,  # Automatically sets:
    # max.in.flight.requests=5
    # retries=Integer.MAX_VALUE
    # acks=all
)
"""

# Seed 003, "1. Buffer Management".
BUFFER_MANAGEMENT = """\
producer = Producer(
    buffer_memory=33554432,  # 32MB total buffer
    max_block_ms=60000       # Block for 60s if buffer full
)
"""

# Seed 003, "2. Rate Limiting".
RATE_LIMITING = """\
# Application-level rate limiting
from ratelimit import limits

@limits(calls=1000, period=1)  # 1000 msg/sec
def send_message(producer, message):
    producer.send(message)
"""

# Seed 003, "3. Async Send with Callbacks".
ASYNC_SEND = """\
def on_send_error(excp):
    log.error('Failed to send', exc_info=excp)
    # Implement exponential backoff

def on_send_success(record_metadata):
    log.info(f'Sent to {record_metadata.topic}')

producer.send('topic', value=msg).add_callback(on_send_success).add_errback(on_send_error)
"""

# Seed 003, "1. Fetch Size Control".
FETCH_SIZES = """\
consumer = Consumer(
    max_poll_records=100,      # Max records per poll
    fetch_min_bytes=1024,      # Min bytes to fetch
    fetch_max_bytes=52428800,  # Max bytes per fetch (50MB)
    max_partition_fetch_bytes=1048576  # Max per partition (1MB)
)
"""

# Seed 003, "2. Processing Rate Control".
RATE_CONTROL = """\
for message in consumer:
    process(message)
    
    # Pause if processing queue is full
    if processing_queue.size() > MAX_QUEUE_SIZE:
        consumer.pause(consumer.assignment())
        wait_for_queue_to_drain()
        consumer.resume(consumer.assignment())
"""  # noqa: W293

# Seed 003, "3. Manual Offset Commit".
COMMIT_AFTER_SUCCESS = """\
# Commit only after successful processing
for message in consumer:
    try:
        process(message)
        consumer.commit()
    except ProcessingError:
        # Don't commit, will reprocess
        log.error('Processing failed, will retry')
        break
"""

# Seed 003, "Heartbeat Mechanism".
HEARTBEAT = """\
consumer = Consumer(
    session_timeout_ms=10000,    # Max time without heartbeat
    heartbeat_interval_ms=3000,  # Heartbeat frequency
    max_poll_interval_ms=300000  # Max time between polls
)
"""

# Seed 003, "1. Network Failure".
NETWORK_FAILURE = """\
producer = Producer(
    retries=Integer.MAX_VALUE,
    retry_backoff_ms=100,
    request_timeout_ms=30000
)
"""

# Seed 003, "2. Producer Crash".
PRODUCER_CRASH = """\
producer = Producer(enable_idempotence=True)
"""

# Seed 003, "1. Consumer Crash".
IDEMPOTENT_PROCESSING = """\
# Idempotent processing
def process(message):
    if not already_processed(message.key):
        do_work(message)
        mark_processed(message.key)
        consumer.commit()
"""

# Seed 003, "2. Slow Consumer".
SLOW_CONSUMER = """\
# Consumer is slow, exceeds max.poll.interval.ms
consumer = Consumer(max_poll_interval_ms=300000)  # 5 minutes

# If processing takes > 5 minutes, consumer is kicked out
"""

# Seed 003, "2. Slow Consumer".
ASYNC_PROCESSING = """\
# Async processing
for message in consumer:
    worker_queue.put(message)
    consumer.commit_async()
"""

# Seed 003, "Producer Load Balancing".
LOAD_BALANCING = """\
# Automatic load balancing across partitions
producer.send('topic', key=user_id, value=data)
# Messages distributed based on key hash
"""

# Seed 004, "Storage Implementation".
STORAGE = '''\
class Partition:
    def __init__(self, topic, partition_id, data_dir):
        self.topic = topic
        self.partition_id = partition_id
        self.data_dir = data_dir
        self.segments = []
        self.active_segment = None
        self.next_offset = 0
        self.max_segment_size = 1 * 1024 * 1024 * 1024  # 1 GB

    def append(self, messages):
        """Append messages to partition"""
        if self.active_segment is None or \\
           self.active_segment.size > self.max_segment_size:
            self._roll_segment()

        offsets = []
        for msg in messages:
            offset = self.next_offset
            self.active_segment.append(offset, msg)
            offsets.append(offset)
            self.next_offset += 1

        return offsets

    def read(self, offset, max_messages=100):
        """Read messages starting from offset"""
        segment = self._find_segment(offset)
        if segment is None:
            return []

        return segment.read(offset, max_messages)

    def _roll_segment(self):
        """Create new segment"""
        if self.active_segment:
            self.active_segment.close()

        new_segment = Segment(
            self.data_dir,
            self.next_offset
        )
        self.segments.append(new_segment)
        self.active_segment = new_segment

class Segment:
    def __init__(self, data_dir, base_offset):
        self.base_offset = base_offset
        self.log_path = f"{data_dir}/{base_offset}.log"
        self.index_path = f"{data_dir}/{base_offset}.index"
        self.log_file = open(self.log_path, 'ab')
        self.index = SparseIndex()
        self.size = 0

    def append(self, offset, message):
        """Append message to segment"""
        position = self.log_file.tell()

        # Write message
        data = self._serialize(offset, message)
        self.log_file.write(data)
        self.size += len(data)

        # Update index (sparse - every N messages)
        if (offset - self.base_offset) % 4096 == 0:
            self.index.add(offset, position)

    def read(self, offset, max_messages):
        """Read messages from segment"""
        # Find position using index
        position = self.index.find_position(offset)

        messages = []
        with open(self.log_path, 'rb') as f:
            f.seek(position)
            while len(messages) < max_messages:
                msg = self._read_message(f)
                if msg is None:
                    break
                if msg['offset'] >= offset:
                    messages.append(msg)

        return messages
'''

# Seed 004, "Replication Protocol".
REPLICATION = '''\
class ReplicationManager:
    def __init__(self, broker_id):
        self.broker_id = broker_id
        self.leader_partitions = {}
        self.follower_partitions = {}

    async def replicate_as_leader(self, partition, messages):
        """Replicate messages to followers"""
        followers = self.get_followers(partition)

        # Send to all followers in parallel
        tasks = []
        for follower in followers:
            task = self.send_to_follower(follower, partition, messages)
            tasks.append(task)

        results = await asyncio.gather(*tasks, return_exceptions=True)

        # Check ISR acknowledgments
        acked = sum(1 for r in results if r is True)

        return acked >= self.min_isr

    async def replicate_as_follower(self, partition):
        """Fetch messages from leader"""
        leader = self.get_leader(partition)
        last_offset = self.get_last_offset(partition)

        while True:
            # Fetch from leader
            messages = await self.fetch_from_leader(
                leader, partition, last_offset
            )

            if messages:
                # Append to local log
                self.append_local(partition, messages)
                last_offset = messages[-1]['offset'] + 1

            await asyncio.sleep(0.1)  # Fetch interval
'''

# Seed 004, "Consumer Implementation".
CONSUMER = '''\
class Consumer:
    def __init__(self, group_id, topics):
        self.group_id = group_id
        self.topics = topics
        self.assigned_partitions = []
        self.offsets = {}

    async def poll(self, timeout_ms=1000):
        """Poll for new messages"""
        messages = []

        for partition in self.assigned_partitions:
            offset = self.offsets.get(partition, 0)

            # Fetch messages from broker
            batch = await self.fetch(partition, offset)
            messages.extend(batch)

            # Update local offset
            if batch:
                self.offsets[partition] = batch[-1]['offset'] + 1

        return messages

    async def commit(self):
        """Commit current offsets"""
        await self.coordinator.commit_offsets(
            self.group_id,
            self.offsets
        )

    async def subscribe(self):
        """Join consumer group"""
        # Register with group coordinator
        await self.coordinator.join_group(
            self.group_id,
            self.topics
        )

        # Receive partition assignment
        self.assigned_partitions = await self.coordinator.get_assignment()

        # Load committed offsets
        self.offsets = await self.coordinator.get_offsets(
            self.group_id,
            self.assigned_partitions
        )
'''

# Seed 004, "Delivery Semantics": in the frame of a drawing, which is left out here.
AT_LEAST_ONCE = """\
while True:
    messages = consumer.poll()
    for msg in messages:
        process(msg)  # Must be idempotent
    consumer.commit()  # After processing
"""

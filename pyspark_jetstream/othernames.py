"""
Names that options have elsewhere, and what each is here: Kafka's source and clients, NATS clients,
the Scala connector for NATS, and earlier versions of this source.

Who comes from there writes them first, and the name that is spelled most alike would mislead. Case
and the characters between words do not count; what only a prefix sets apart (`kafka.`, `nats.`) is
the same name. None is one of ours: an option that has the same name here stays what it is here.
"""

from __future__ import annotations

import re
from typing import Final

_READS: Final = "stream range"
_ALL: Final = "stream range sink"

_PREFIXES: Final = {
    "kafka.": "a setting of Kafka's clients; here 'servers' says where to connect, and the options"
    " beside it how",
    "kafkaconsumer.": "a setting of Kafka's clients; reads wait for 'requestTimeout'",
    "fetchoffset.": "a setting of Kafka's source; requests are made again for 'requestTimeout'",
    "nats.": "no name of this source, whose options have no prefix",
}

_HERE: Final[tuple[tuple[str, str, str], ...]] = (
    # where to connect, and as whom
    (_ALL, "bootstrap.servers brokers broker.list url urls uri server address nats.url",
     "it is 'servers' here: nats://host:4222, or a comma list"),
    (_ALL, "host hostname port", "it is part of 'servers' here: nats://host:4222"),
    (_ALL, "username login connection.user.name", "it is 'user' here, beside 'password'"),
    (_ALL, "pass passwd connection.user.password", "it is 'password' here, beside 'user'"),
    (_ALL, "authToken accessToken", "it is 'token' here"),
    (_ALL, "creds credsFile credentialFile credentialsPath userCredentials userCreds jwt",
     "it is 'credentialsFile' here, a .creds file; or 'credentials', its text"),
    (_ALL, "nkey nkeySeed nkeyFile nkeysSeed seed",
     "it is 'nkeySeedFile' here, a file that holds the seed: query plans show options"),
    (_ALL, "sasl.mechanism sasl.jaas.config sasl.username sasl.password",
     "log in with 'user' and 'password', 'token', 'credentialsFile' or 'nkeySeedFile'"),
    (_ALL, "tls ssl secure useTls tlsEnabled security.protocol",
     "write tls:// instead of nats:// in 'servers'; 'tlsCaFile' names who signed its certificate"),
    (_ALL, "ca caFile caCert rootCa tlsCa tlsCaCert ssl.ca.location"
     " ssl.truststore.location ssl.truststore.password trust.store.path trust.store.password",
     "it is 'tlsCaFile' here: certificates as PEM, no Java store"),
    (_ALL, "cert certFile tlsCert clientCert ssl.certificate.location ssl.keystore.location"
     " ssl.keystore.password key.store.path key.store.password",
     "it is 'tlsCertFile' here, beside 'tlsKeyFile': PEM, no Java store"),
    (_ALL, "keyFile tlsKey clientKey ssl.key.location ssl.key.password",
     "it is 'tlsKeyFile' here, as PEM"),
    (_ALL, "tlsFirst handshakeFirst", "it is 'tlsHandshakeFirst' here"),
    (_ALL, "tls.algorithm ssl.context.factory.class",
     "TLS needs no more than 'tlsCaFile' and, where asked for, 'tlsCertFile' and 'tlsKeyFile'"),
    (_ALL, "domain", "it is 'jsDomain' here"),
    (_ALL, "apiPrefix jsPrefix js.api.prefix source.js.api.prefix sink.js.api.prefix",
     "it is 'jsApiPrefix' here"),
    (_ALL, "timeout connection.timeout",
     "it is 'connectTimeout' here, with its unit, such as 5s; or 'requestTimeout', of an answer"),
    (_ALL, "request.timeout.ms request.timeout.millis",
     "it is 'requestTimeout' here, with its unit, such as 30s"),
    (_ALL, "reconnect allow.reconnect max.reconnects max.reconnect.attempts reconnect.wait"
     " reconnect.wait.secs ping.interval ping.interval.secs",
     "connections are made again for 'requestTimeout'; leave it out"),
    (_ALL, "client.id client.name connection.name", "connections have one name; leave it out"),
    (_ALL, "storage.payload.compression compression compression.type",
     "payloads are read and stored as they are; leave it out, and change the column data"),
    # what is read
    (_READS, "subscribe topic topics streams stream.name pull.subscription.stream.name",
     "it is 'stream' here, a stream's name or a comma list of them; 'subject' has filters of its"
     " subjects"),
    (_READS, "subscribePattern topicPattern topicsPattern",
     "it is 'streamPattern' here, names of streams with * for any characters, such as tenant-*"),
    (_READS, "subjects filter filters filterSubject filterSubjects"
     " subject.filter stream.subjects",
     "it is 'subject' here, filters such as orders.*.eu; 'stream' names the stream"),
    (_READS, "assign",
     "partitions are made of subjects here: 'partitions' with 'partitionSubject', or one stream"
     " each"),
    ("stream", "durable durableName consumerName pull.subscription.durable.name groupId"
     " group.id groupIdPrefix",
     "it is 'consumer' here; a query that has its checkpoint needs none"),
    ("range", "durable durableName consumerName groupId group.id groupIdPrefix",
     "a batch read has no consumer; 'startingOffsets' and 'endingOffsets' say what it reads"),
    ("stream", "queue queueGroup deliverGroup",
     "queries share a stream by 'priorityPolicy' and the name of one 'consumer'"),
    (_READS, "deliverPolicy deliver auto.offset.reset startingPosition",
     "it is 'startingOffsets' here (earliest, latest, or JSON), or 'startingTimestamp'"),
    (_READS, "optStartSeq startSeq startSequence startingSequence startingSeq firstSequence"
     " fromSequence",
     "it is 'startingOffsets' here, by partition: {\"0\": 42}"),
    (_READS, "startingOffsetsByTimestamp startingOffsetsByTimestampStrategy optStartTime startTime"
     " startTimestamp",
     "it is 'startingTimestamp' here: RFC 3339, or -10m, for all partitions or of several streams"
     " by stream"),
    ("range", "endingOffsetsByTimestamp endTime endTimestamp",
     "it is 'endingTimestamp' here: RFC 3339, or -10m, for all partitions or of several streams by"
     " stream"),
    (_READS, "ackPolicy enable.auto.commit autoCommit",
     "how a batch is settled follows from the stream's retention; leave it out"),
    ("stream", "msg.ack.wait.secs consumer.ack.wait pull.consumer.ack.wait",
     "it is 'ackWait' here, with its unit, and of shared consumers alone ('priorityPolicy')"),
    ("stream", "pull.consumer.max.ack.pending",
     "it is 'maxAckPending' here, of shared consumers alone ('priorityPolicy')"),
    (_READS, "pull.wait.time msg.receive.wait.millis expires poll.timeout.ms",
     "it is 'requestTimeout' here: for so long a read may make no progress"),
    ("stream", "maxOffsetsPerTrigger maxMessagesPerTrigger max.poll.records batchSize fetchSize"
     " msg.fetch.batch.size pull.batch.size pull.consumer.max.batch",
     "it is 'maxRecordsPerTrigger' here: so many messages a batch at most"),
    ("stream", "minOffsetsPerTrigger minMessagesPerTrigger",
     "it is 'minRecordsPerTrigger' here, with 'maxTriggerDelay'"),
    ("range", "maxOffsetsPerTrigger minOffsetsPerTrigger max.poll.records",
     "a batch read has no trigger; 'startingOffsets' and 'endingOffsets' say what it reads"),
    ("range", "batchSize fetchSize", "it is 'maxRecordsPerPartition' here, of a task"),
    (_READS, "num.listeners listeners parallelism numPartitions",
     "it is 'partitions' here, with 'partitionSubject'; or 'minPartitions', of a direct read"),
    ("range", "kv kvBucket keyValue keyValueBucket", "it is 'bucket' here"),
    (_READS, "headers withHeaders", "it is 'includeHeaders' here"),
    # what is written
    ("sink", "topic topics subjects", "it is 'subject' here, for all rows; or a column subject"),
    ("sink", "streamName stream.name",
     "rows go to a subject, which its stream takes: 'subject', or a column subject; to make a"
     " stream, 'createStream' with 'stream' and 'streamSubjects'"),
    ("sink", "includeHeaders", "a column headers goes out by itself; leave the option out"),
    ("sink", "acks", "every row has its PubAck; leave it out"),
    ("sink", "enable.idempotence transactional.id", "it is 'exactlyOnce' here"),
    ("sink", "retries delivery.timeout.ms", "a row is sent again for 'publishTimeout'"),
    ("sink", "linger.ms batch.size batchSize",
     "it is 'publishMode' here, which says how rows go out"),
    ("sink", "max.in.flight.requests.per.connection maxPending maxPubAcksInflight",
     "it is 'maxInFlight' here"),
    ("sink", "duplicateWindow dedupWindow dedupeWindow deduplicationWindow",
     "it is duplicate_window, in nanoseconds, in the JSON of 'streamConfig'"),
    ("sink", "queueBytes throttleBufferBytes maxInFlightBytes buffer.memory"
     " queue.buffering.max.kbytes",
     "it is 'bufferMemory' here, for all rows that a task holds"),
    ("sink", "limiter minInFlight initialInFlight",
     "the window finds its size by itself; 'maxInFlight' is the most it may have"),
    ("sink", "overloadWindow", "push-back counts for one second; leave it out"),
    ("sink", "throttle", "it is 'throttleSubject' here; none for no throttle"),
    ("sink", "throttleMode", "it is 'throttleMaxWait' here; 0 to fail fast"),
    ("sink", "msgId messageId", "it is a column here, msg_id"),
    ("sink", "stream.subjects", "it is 'streamSubjects' here, with 'createStream'"),
    ("sink", "replicas num.replicas storage.replicas",
     "it is num_replicas in the JSON of 'streamConfig', with 'createStream'"),
    ("sink", "retention allowDirect allowBatched allowAtomic",
     "it is a field of the JSON of 'streamConfig': retention, allow_direct, allow_batched,"
     " allow_atomic"),
    ("sink", "define.stream js.define.stream", "it is 'createStream' here"),
)  # fmt: skip
"""By use of a name: its spelling elsewhere, and the advice."""


GONE: Final = {
    "throttleParkStream": "it is gone: a paused row waits in its task, or is a dead letter with"
    " 'onThrottleTimeout=dead-letter'",
    "throttleParkBytes": "it is gone with 'throttleParkStream'",
}
"""Options that earlier versions had, and what takes their place."""


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


_SAID: Final = {
    (kind, _plain(name)): said
    for kinds, names, said in _HERE
    for kind in kinds.split()
    for name in names.split()
}

_GONE: Final = {_plain(name): said for name, said in GONE.items()}


def said_of(name: str, kind: str) -> str | None:
    """
    Meaning of an option of this name here; None of a name that is not known from elsewhere.

    Args:
        kind: `stream`, `range` or `sink`, where it was given.
    """
    said = _GONE.get(_plain(name)) or _SAID.get((kind, _plain(name)))
    prefix = next((each for each in _PREFIXES if name.lower().startswith(each)), None)
    if said is None and prefix is not None:
        return _SAID.get((kind, _plain(name[len(prefix) :]))) or _PREFIXES[prefix]
    return said

"""
The table of options: which there are, where each applies, its default and its sentence.

Names, defaults and sentences are those of the README's tables; a test compares the two. What the
values become, and which options go together, is in `options`.
"""

from __future__ import annotations

from typing import Final

from . import values as value_of
from .mapping.subjectmapping import SubjectMapping
from .option import Option, everywhere, only, reads
from .publish.pressure import PRESSURE_OPTIONS
from .readrows import BATCH_READS
from .readstream.options import POLICIES, SHARING_OPTIONS

__all__ = ["CONNECTION_OPTIONS", "OPTIONS", "SPARKS_OWN"]

OPTIONS: Final[tuple[Option, ...]] = (
    everywhere(
        "servers", value_of.servers, "nats://127.0.0.1:4222", "Servers to try, a comma list."
    ),
    everywhere("credentialsFile", value_of.secret_file, "", "A `.creds` file; read on the driver."),
    everywhere("credentials", value_of.secret, "", "The content of a `.creds` file.", secret=True),
    everywhere(
        "nkeySeedFile", value_of.secret_file, "", "A file with an nkey seed; read on the driver."
    ),
    everywhere("user", value_of.text, "", "User name."),
    everywhere("password", value_of.secret, "", "Password of `user`.", secret=True),
    everywhere("token", value_of.secret, "", "Token.", secret=True),
    everywhere(
        "tlsCaFile",
        value_of.existing_file,
        "",
        "CA certificates (PEM), at the same path on every host.",
    ),
    everywhere("tlsCertFile", value_of.existing_file, "", "Client certificate (PEM), likewise."),
    everywhere(
        "tlsKeyFile", value_of.existing_file, "", "Key of the client certificate (PEM), likewise."
    ),
    everywhere("jsDomain", value_of.domain, "", "JetStream domain."),
    everywhere(
        "jsApiPrefix", value_of.api_prefix, "$JS.API", "JetStream API prefix, instead of a domain."
    ),
    everywhere(
        "connectTimeout", value_of.duration, "5s", "How long one server may take to connect."
    ),
    everywhere(
        "requestTimeout",
        value_of.duration,
        "30s",
        "How long a request or a read may make no progress, reconnects included, before it fails.",
    ),
    reads(
        "stream",
        value_of.text,
        "",
        "Stream name; with `{partition}` in it, one stream a partition.",
    ),
    reads("subject", value_of.subject_filter, "", "Read only subjects that match this filter."),
    reads("partitions", value_of.positive, "1", "Number N of subject partitions."),
    reads(
        "partitionSubject",
        value_of.partition_subject,
        "",
        "Filter of one partition with `{partition}` as a token, such as `flights.{partition}.>`.",
    ),
    reads("includeHeaders", value_of.boolean, "false", "Add the column `headers`."),
    reads(
        "failOnDataLoss",
        value_of.boolean,
        "true",
        "Fail when messages are gone before they were read.",
    ),
    reads(
        "minPartitions", value_of.positive, "", "Split a direct read into at least so many tasks."
    ),
    reads(
        "maxRecordsPerPartition",
        value_of.positive,
        "",
        "Split a direct read so that no task exceeds it.",
    ),
    reads(
        "startingOffsets",
        value_of.offsets,
        "earliest",
        "`earliest`, `latest`, or JSON of partition to the first sequence to read.",
    ),
    reads(
        "startingTimestamp",
        value_of.moment,
        "",
        "Start at the first message not before it: RFC 3339, or `-10m`.",
    ),
    reads(
        "endingOffsets",
        value_of.offsets,
        "latest",
        "`latest`, or JSON of partition to the last sequence to read.",
    ),
    only(
        "range",
        "endingTimestamp",
        value_of.moment,
        "",
        "End before this moment: RFC 3339, or `-10m`.",
    ),
    *(only("range", *row) for row in BATCH_READS),
    only(
        "stream",
        "consumer",
        value_of.consumer_name,
        "",
        "Prefix of the durable consumers; default: made once, kept in the checkpoint.",
    ),
    only(
        "stream",
        "priorityPolicy",
        value_of.choice("pinned_client", *POLICIES),
        "pinned_client",
        "`pinned_client`: a consumer of our own; `overflow`, `prioritized`: shared with others.",
    ),
    only(
        "stream",
        "ackPolicy",
        value_of.choice("auto"),
        "auto",
        "Ack policy of the consumers: by the stream's retention.",
    ),
    only(
        "stream",
        "priorityGroup",
        value_of.priority_group,
        "spark",
        "Name of the consumers' priority group.",
    ),
    only(
        "stream",
        "priorityTimeout",
        value_of.duration,
        "",
        "The server unpins a silent client after it, `6s` at least; default: the server's 2m.",
    ),
    only(
        "stream",
        "standby",
        value_of.boolean,
        "false",
        "Wait while an identical query with the same `consumer` and another checkpoint reads, and"
        " take its place when it dies.",
    ),
    *SHARING_OPTIONS,
    only(
        "stream",
        "readMode",
        value_of.choice("auto", "consumer", "direct"),
        "auto",
        "`consumer`, `direct`, or per batch what costs the server least.",
    ),
    only(
        "stream", "maxRecordsPerTrigger", value_of.positive, "", "At most so many messages a batch."
    ),
    only(
        "stream",
        "maxBytesPerTrigger",
        value_of.size,
        "",
        "About so many bytes a batch, by the stream's average message.",
    ),
    only(
        "stream",
        "minRecordsPerTrigger",
        value_of.positive,
        "",
        "Wait for so many messages before a batch.",
    ),
    only("stream", "maxTriggerDelay", value_of.duration, "15m", "But no longer than this."),
    only(
        "sink",
        "subject",
        value_of.publish_subject,
        "",
        "Subject of every row, instead of a `subject` column.",
    ),
    only(
        "sink",
        "subjectMapping",
        lambda value: SubjectMapping.parse(value_of.inline_or_file(value)),
        "",
        "Rules that map each subject before it is published: JSON, or a file with a nats-server's"
        " `mappings` block.",
    ),
    only(
        "sink",
        "mappingKey",
        value_of.text,
        "",
        "What decides among weighted destinations instead of the message id: `subject`, or a"
        " header's name.",
    ),
    only(
        "sink",
        "publishMode",
        value_of.choice("auto", "async", "fast", "atomic"),
        "auto",
        "How messages go out: each with its PubAck, as a fast-ingest batch, as atomic batches.",
    ),
    only(
        "sink",
        "exactlyOnce",
        value_of.boolean,
        "",
        "Keep a ledger of what is written; default for `writeStream`. `false`: no message ids"
        " either.",
    ),
    only(
        "sink",
        "createStream",
        value_of.boolean,
        "false",
        "Create the target stream if it is missing; never changes one that is there.",
    ),
    only(
        "sink",
        "stream",
        value_of.text,
        "",
        "Name of the stream to create; with `{partition}` in it, one stream a partition.",
    ),
    only(
        "sink",
        "streamSubjects",
        value_of.stream_subjects,
        "",
        "Its subjects, a comma list; `{partition}` is the token of the partition.",
    ),
    only("sink", "partitions", value_of.positive, "1", "Number of partitions."),
    only("sink", "replicas", value_of.positive, "1", "Its replicas."),
    only(
        "sink",
        "retention",
        value_of.choice("limits", "interest", "workqueue"),
        "limits",
        "Its retention.",
    ),
    only("sink", "duplicateWindow", value_of.duration, "2m", "Its duplicate window."),
    only("sink", "allowDirect", value_of.boolean, "true", "Whether it allows direct get."),
    only("sink", "allowBatched", value_of.boolean, "true", "Whether it allows fast publishing."),
    only("sink", "allowAtomic", value_of.boolean, "false", "Whether it allows atomic batches."),
    only(
        "sink",
        "limiter",
        value_of.choice("gradient", "fixed"),
        "gradient",
        "What `maxInFlight` means: the most that round trips and refusals may lead to, or always.",
    ),
    only(
        "sink",
        "minInFlight",
        value_of.positive,
        "1",
        "So many publishes without a PubAck are always allowed.",
    ),
    only(
        "sink",
        "initialInFlight",
        value_of.positive,
        "64",
        "So many in the first task of a worker process, but not above `maxInFlight`.",
    ),
    only(
        "sink",
        "maxInFlight",
        value_of.positive,
        "4096",
        "Publishes without a PubAck at one time, a task.",
    ),
    only("sink", "maxInFlightBytes", value_of.size, "32MiB", "Their bytes."),
    only(
        "sink",
        "ackTimeout",
        value_of.duration,
        "5s",
        "Publish again when no PubAck came within it.",
    ),
    only(
        "sink",
        "publishTimeout",
        value_of.duration,
        "2m",
        "Fail when a message is not stored after it, retries included.",
    ),
    *PRESSURE_OPTIONS,
)
"""Every option this version supports."""

CONNECTION_OPTIONS: Final[tuple[Option, ...]] = tuple(
    option for option in OPTIONS if option.kinds == frozenset({"stream", "range", "sink"})
)
"""Those that say how to reach and enter the servers."""

SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname", "path"})
"""Options that Spark itself puts beside ours."""

"""
Makes N partition streams of a stream, on the server itself.

    python jobs/partition_stream.py --stream FLIGHTS --streams 'FLIGHTS-{partition}' \\
        --partitions 4 --partition-subject 'flights.{partition}.>'
    python jobs/partition_stream.py --stream RAW --streams 'RAW-{partition}' \\
        --partitions 4 --subject 'raw.*.*' --tokens 1
"""

from __future__ import annotations

import argparse
import re
import sys

from progress import copying

from pyspark_jetstream.errors import JetStreamError
from pyspark_jetstream.options import parse_connection
from pyspark_jetstream.optiontable import CONNECTION_OPTIONS
from pyspark_jetstream.partitioning import PartitionPlan, partition_stream


def main() -> int:
    """Exit status 0: every partition holds what it should, subject by subject."""
    verbatim = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=verbatim)
    add = parser.add_argument
    add("--stream", dest="origin", required=True, help="the stream to partition; left as it is")
    add("--streams", metavar="NAME-{partition}", help="names of the partitions' streams")
    add("--partitions", type=int, required=True, metavar="N")
    add("--partition-subject", help="where the number stands: 'flights.{partition}.>'")
    add("--subject", help="or, where there is none, the subjects to number: 'flights.*.*'")
    add("--tokens", type=int, nargs="+", default=(), help="the '*' to hash, counted from 1")
    add("--destination", help="the transform that numbers; default: after the literal beginning")
    add("--numbered", metavar="NAME", help="stream in between; alone: one stream, numbered")
    add("--stall-timeout", type=float, default=60, help="seconds without a copy (%(default)s)")
    group = parser.add_argument_group("connection (as for the data source)")
    for option in CONNECTION_OPTIONS:
        flag = "--" + re.sub("[A-Z]", lambda m: "-" + m[0].lower(), option.name)
        group.add_argument(flag, dest=f"connection {option.name}", metavar="…", help=option.doc)
    given = vars(parser.parse_args())
    patience = given.pop("stall_timeout")
    words = {o.name: given.pop(f"connection {o.name}") for o in CONNECTION_OPTIONS}
    try:
        connection = parse_connection({k: v for k, v in words.items() if v is not None})
        plan = PartitionPlan(**given | {"tokens": tuple(given["tokens"])})
        with copying() as show:
            done = partition_stream(connection, plan, progress=show, stall_timeout_s=patience)
    except JetStreamError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: the server goes on copying; run this again to check", file=sys.stderr)
        return 130
    print(f"{done.messages:,} messages of {done.subjects:,} subjects, {done.left_out:,} left out")
    return 0


if __name__ == "__main__":
    sys.exit(main())

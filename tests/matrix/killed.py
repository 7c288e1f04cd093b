"""A program that copies two layouts exactly once until it is killed; it imports no tests."""

import json
import sys


def main(task):
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[2]").getOrCreate()
    servers, source, target = task["servers"], task["source"], task["target"]
    layouts = {
        "filtered": {"stream": source, "partitionSubject": f"{source}.{{partition}}.>"},
        "streams": {"stream": f"{source}-{{partition}}"},
    }
    for name, layout in layouts.items():
        rows = (
            spark.readStream.format("jetstream")
            .options(servers=servers, partitions="2", maxRecordsPerTrigger="30", **layout)
            .load()
        )
        (
            rows.selectExpr(f"'{target}.' || partition AS subject", "data")
            .writeStream.format("jetstream")
            .options(servers=servers, checkpointLocation=f"{task['checkpoint']}-{name}")
            .start()
        )
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

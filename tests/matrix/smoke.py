"""What each cell runs: writes, reads a stream twice, copies it, reads copy and snapshot."""

import json
import sys
from importlib.util import find_spec


def main(task):
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import udf

    builder = SparkSession.builder.appName("matrix").config("spark.sql.shuffle.partitions", "2")
    if "master" in task:
        builder = builder.master(task["master"])
    if "remote" in task:
        builder = builder.remote(task["remote"])
    spark = builder.getOrCreate()
    if task.get("register"):
        import pyspark_jetstream

        pyspark_jetstream.register(spark)

    servers, source, target = task["servers"], task["source"], task["target"]

    def write(first, behind):
        rows = spark.range(first, behind, 1, 1).selectExpr(  # one task, so in order
            f"concat('{source}.', id % 2, '.', id % 10) AS subject", "string(id) AS data"
        )
        rows.write.format("jetstream").mode("append").option("servers", servers).save()

    def copy():
        flights = (
            spark.readStream.format("jetstream")
            .options(servers=servers, stream=source, partitions="2")
            .option("partitionSubject", f"{source}.{{partition}}.>")
            .load()
        )
        query = (
            flights.selectExpr(f"replace(subject, '{source}.', '{target}.') AS subject", "data")
            .writeStream.format("jetstream")
            .option("servers", servers)
            .option("checkpointLocation", task["checkpoint"])
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(180), "the query did not end within 180 s"
        assert query.exception() is None, query.exception()

    write(0, 500)
    copy()
    write(500, 800)
    copy()

    read = spark.read.format("jetstream").options(servers=servers, stream=target)
    rows = read.load()
    last = read.option("multiLast", f"{target}.>").load()
    interpreter = udf(lambda _: sys.executable, "string", useArrow=False)
    workers = spark.range(0, 2, 1, 2).select(interpreter("id").alias("path"))
    package = find_spec("pyspark_jetstream")  # of this program; clients of Connect need none
    java = "java_method('java.lang.System', 'getProperty', 'java.version') AS java"
    result = {
        "copied": rows.count(),
        "different": rows.select("data").distinct().count(),
        "snapshot": sorted(int(bytes(row.data)) for row in last.select("data").collect()),
        "workers": sorted({row.path for row in workers.collect()}),
        "spark": spark.version,
        "java": spark.range(1).selectExpr(java).first().java,
        "python": sys.version.split()[0],
        "package": package and package.origin,
    }
    sys.stdout.write(f"RESULT {json.dumps(result)}\n")
    sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

"""Messages into streams, each with its answer: three ways to publish, one loop. No Spark."""

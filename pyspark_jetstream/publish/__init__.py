"""Messages into streams, each with its answer: one lane, one loop. No Spark."""

"""Knowledge of `inspect` and `unpin`: the server, a checkpoint, and problems of both."""

"""Programs are run in processes of their own; importing some of them puts Headrace in Grain's place."""

collect_ignore = ["drive.py", "jax_process.py", "keras_program.py", "programs", "saving.py"]

"""The ways in which clients save an iterator."""

import json


class AsJson:
    """The state in a JSON file of the program's own; a loader's is text in it."""

    @staticmethod
    def save(iterator, folder) -> None:
        state = iterator.get_state()
        (folder / "state.json").write_text(json.dumps(state.decode() if isinstance(state, bytes) else state))

    @staticmethod
    def restore(iterator, folder) -> None:
        state = json.loads((folder / "state.json").read_text())
        iterator.set_state(state.encode() if isinstance(state, str) else state)


class WithOrbax:
    """An Orbax checkpoint with the iterator beside other items."""

    @staticmethod
    def save(iterator, folder) -> None:
        import grain.python as grain
        import orbax.checkpoint as ocp

        with ocp.CheckpointManager(folder / "orbax") as manager:
            items = {"iter": grain.PyGrainCheckpointSave(iterator), "step": ocp.args.JsonSave({"step": 4})}
            manager.save(4, args=ocp.args.Composite(**items))

    @staticmethod
    def restore(iterator, folder) -> None:
        import grain.python as grain
        import orbax.checkpoint as ocp

        with ocp.CheckpointManager(folder / "orbax") as manager:
            items = {"iter": grain.PyGrainCheckpointRestore(iterator), "step": ocp.args.JsonRestore()}
            assert manager.restore(4, args=ocp.args.Composite(**items)).step == {"step": 4}

"""What goes wrong with a checkpoint, in one sentence for the person who named it."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message is one sentence with the number or name that caused it."""


class NoRoomError(CheckpointError):
    """A checkpoint whose weights do not fit into the memory that is free."""


class LoadCancelledError(CheckpointError):
    """Somebody no longer wants what was being loaded."""

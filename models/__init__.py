"""Models of the playground: our decoder, its training and the loading of checkpoints."""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from models.capability import Card
from models.checkpoints import Loaded, load, shipped
from models.configuration import DecoderConfig
from models.decoder import DecoderForCausalLM, DecoderModel
from models.errors import CheckpointError, LoadCancelledError, NoRoomError
from models.progress import Progress

AutoConfig.register("decoder", DecoderConfig, exist_ok=True)
AutoModel.register(DecoderConfig, DecoderModel, exist_ok=True)
AutoModelForCausalLM.register(DecoderConfig, DecoderForCausalLM, exist_ok=True)

__all__ = [
    "Card",
    "CheckpointError",
    "DecoderConfig",
    "DecoderForCausalLM",
    "DecoderModel",
    "LoadCancelledError",
    "Loaded",
    "NoRoomError",
    "Progress",
    "load",
    "shipped",
]

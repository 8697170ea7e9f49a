"""What a job file may hold: the model of a job and the kinds of its values."""

from hvdtrain.config.data import (
    DataConfig,
    DigitsData,
    FactoryData,
    FolderData,
    SamplingConfig,
    SyntheticData,
    TarData,
)
from hvdtrain.config.job import (
    SHORT_FORMS,
    BatchConfig,
    CheckpointConfig,
    GradientsConfig,
    Job,
    ModelConfig,
    OutputConfig,
    PreemptionConfig,
    StallConfig,
    TuningConfig,
)
from hvdtrain.config.optimizer import OptimizerConfig, ScheduleConfig
from hvdtrain.config.section import Choice, Section

__all__ = [
    "SHORT_FORMS",
    "BatchConfig",
    "CheckpointConfig",
    "Choice",
    "DataConfig",
    "DigitsData",
    "FactoryData",
    "FolderData",
    "GradientsConfig",
    "Job",
    "ModelConfig",
    "OptimizerConfig",
    "OutputConfig",
    "PreemptionConfig",
    "ScheduleConfig",
    "SamplingConfig",
    "Section",
    "StallConfig",
    "SyntheticData",
    "TarData",
    "TuningConfig",
]

"""What a job file may hold: the model of a job and the kinds of its values."""

from hvdtrain.config.job import (
    SHORT_FORMS,
    BatchConfig,
    Choice,
    DataConfig,
    DigitsData,
    FactoryData,
    FolderData,
    Job,
    ModelConfig,
    OptimizerConfig,
    OutputConfig,
    ScheduleConfig,
    Section,
    SyntheticData,
    TuningConfig,
)

__all__ = [
    "SHORT_FORMS",
    "BatchConfig",
    "Choice",
    "DataConfig",
    "DigitsData",
    "FactoryData",
    "FolderData",
    "Job",
    "ModelConfig",
    "OptimizerConfig",
    "OutputConfig",
    "ScheduleConfig",
    "Section",
    "SyntheticData",
    "TuningConfig",
]

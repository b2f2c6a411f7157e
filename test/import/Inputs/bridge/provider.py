from megatron.bridge.models.llama import Llama32ModelProvider
from megatron.bridge.training.config import ConfigContainer, FinetuningDatasetConfig, TrainingConfig

model = Llama32ModelProvider(num_layers=2, hidden_size=64, num_attention_heads=4, seq_length=128)
data = FinetuningDatasetConfig(dataset_root="/data/squad", seq_length=128)
run = ConfigContainer(model=model, dataset=data, train=TrainingConfig(micro_batch_size=1, global_batch_size=8))

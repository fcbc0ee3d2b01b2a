"""Environment variables, launchers, and the commands that scripts put before them."""
from octavo_command.importing.rows import exported, fact, nothing, positive, table

ENVIRONMENT = table(
    ("CUDA_DEVICE_MAX_CONNECTIONS", nothing("communication overlaps computation without it")),
    ("NVTE_FP8_ALLREDUCE",
     nothing("Transformer Engine does not read it either; pass --reduce e4m3 for FP8 gradients")),
    ("NVTE_*", nothing("Transformer Engine reads it, and Octavo does not use Transformer Engine")),
    ("NCCL_* CUDA_VISIBLE_DEVICES UCX_* OMPI_* GLOO_SOCKET_IFNAME", exported()),
    ("OMP_NUM_THREADS", exported()),
    ("MASTER_ADDR MASTER_PORT", exported()),
    ("RANK LOCAL_RANK NODE_RANK NNODES NPROC_PER_NODE GPUS_PER_NODE WORLD_SIZE NUM_GPUS",
     nothing("the launcher sets ranks")),
    ("PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF", nothing("all memory is allocated before the first step")),
    ("TORCH_* TORCHELASTIC_* TORCHINDUCTOR_* TORCHDYNAMO_* PYTORCH_* PYTHON* CUDA_LAUNCH_BLOCKING "
     "CUDA_MODULE_LOADING KINETO_* GLOO_* DS_* DEEPSPEED_* ACCELERATE_* FSDP_* XLA_* CUBLAS_WORKSPACE_CONFIG "
     "NVIDIA_TF32_OVERRIDE",
     nothing("PyTorch and its libraries read it")),
    ("FORCE_TORCHRUN DISABLE_VERSION_CHECK USE_MODELSCOPE_HUB LLAMAFACTORY_*", nothing("LLaMA-Factory reads it")),
    ("WANDB_* COMET_* MLFLOW_* SWANLAB_* TENSORBOARD_*",
     nothing("the folder --out has metrics.jsonl and TensorBoard events")),
    ("HF_* TRANSFORMERS_* TOKENIZERS_PARALLELISM HUGGING* TQDM_* DATASETS_* MODELSCOPE_*",
     nothing("Hugging Face's libraries read it")),
    ("PATH LD_LIBRARY_PATH LD_PRELOAD CUDA_HOME CUDA_PATH CONDA_* VIRTUAL_ENV HOME TMPDIR LOG_LEVEL LOGLEVEL "
     "LC_ALL LANG TRITON_* CXX CC",
     nothing("concerns the environment of that trainer")),
)

LAUNCHER = table(
    ("--nproc_per_node --nproc-per-node --num_gpus --gpus_per_node", fact("ranks_per_node", positive)),
    ("--nnodes --num_nodes", fact("nodes", positive)),
    ("-np -n --np --ntasks", fact("ranks", positive)),
    ("--ntasks-per-node", fact("ranks_per_node", positive)), ("-N --nodes", fact("nodes", positive)),
    ("--host -H --mca -x --bind-to --map-by --oversubscribe --allow-run-as-root --mpi -l -u --label --unbuffered "
     "--gpus-per-task --cpus-per-task --partition -p",
     nothing("pass it to the mpirun or srun that starts Octavo")),
    ("--master_addr --master_port --master-addr --master-port --node_rank --node-rank --rdzv_backend "
     "--rdzv-backend --rdzv_endpoint --rdzv-endpoint --rdzv_id --rdzv-id --rdzv_conf --rdzv-conf --standalone "
     "--hostfile --include --exclude --no_ssh --launcher",
     nothing("mpirun, srun and torchrun launch Octavo as well: docs/ranks.md")),
    ("--max_restarts --max-restarts --monitor-interval --tee --log_dir --log-dir --redirects --role "
     "--local-ranks-filter --local_ranks_filter --start-method --use-env --use_env --bind_cores_to_rank "
     "--autotuning",
     nothing("concerns the launcher's processes")),
)

SCRIPT_VARIABLE = nothing("a variable of the script")
WRAPPER = nothing("starts the launcher")

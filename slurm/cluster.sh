# What is special about your cluster: the one file here to edit. Everything in it may stay as it is.
#
# The jobs read it when they start, `querylect launch` also when it submits. Before a plain `sbatch` read it yourself:
#     source slurm/cluster.sh
# QUERYLECT_CLUSTER names another file of this kind, for the jobs and for `querylect launch`.

# Where jobs go. sbatch reads these; they come before the #SBATCH lines of a script, and after sbatch's own arguments.
# export SBATCH_PARTITION=gpu
# export SBATCH_ACCOUNT=project
# export SBATCH_QOS=normal
# export SBATCH_CONSTRAINT=h100

# What a job loads and knows: modules, caches, variables of libraries.
# module load cuda/12.8
# export HF_HOME=/scratch/$USER/huggingface HF_HUB_OFFLINE=1
# export NCCL_SOCKET_IFNAME=ib0

# In front of every command of a job, for instance a container that holds querylect; and further arguments of srun.
container=()   # container=(apptainer exec --nv --bind /scratch image.sif)
step=()        # step=(--mpi=none)

# The command. Unset, it is .venv/bin/querylect where that is there, else the one on the PATH.
# export QUERYLECT=/opt/querylect/bin/querylect

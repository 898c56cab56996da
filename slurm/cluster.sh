# The settings of your cluster: the one file here to edit. The defaults may be enough.
#
# Jobs read it when they start, `querylect launch` also when it submits. Before a plain `sbatch`: source slurm/cluster.sh
# QUERYLECT_CLUSTER names another file of this kind.

# Where jobs run. sbatch reads these; its own options take precedence, the #SBATCH lines of a script do not.
# export SBATCH_PARTITION=gpu
# export SBATCH_ACCOUNT=project
# export SBATCH_QOS=normal
# export SBATCH_CONSTRAINT=h100

# The environment of a job.
# module load cuda/12.8
# export HF_HOME=/scratch/$USER/huggingface HF_HUB_OFFLINE=1
# export NCCL_SOCKET_IFNAME=ib0

# A prefix of every command, such as a container that holds querylect; and further options of srun.
container=()   # container=(apptainer exec --nv --bind /scratch image.sif)
step=()        # step=(--mpi=none)

# The command. Unset: .venv/bin/querylect if it exists, else the one on the PATH.
# export QUERYLECT=/opt/querylect/bin/querylect

"""How does a program reach environments? One client, retries, child processes, several services as one."""

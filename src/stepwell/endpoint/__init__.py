"""Lets other processes of this machine use a running pipeline without fencing it."""

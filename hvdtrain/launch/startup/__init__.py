"""A folder for PYTHONPATH: Python imports ``sitecustomize`` from it when a rank starts."""

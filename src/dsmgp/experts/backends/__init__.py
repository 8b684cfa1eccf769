"""The linear algebra of leaf GPs in compiled code, NumPy or torch, behind one interface."""

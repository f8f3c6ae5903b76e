"""Carries a policy's plans out on one device: slots, the expert cache's bank, copies and waits."""

"""Predicts passes without running them: what each step costs, by rates or fitted to captures, and how steps and copies
follow one another under an arm's own policy.
"""

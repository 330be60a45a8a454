# SPDX-License-Identifier: Apache-2.0
"""Adds a provider, an op and a platform, found by its entry points."""

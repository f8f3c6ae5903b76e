"""Three implementations of one interface (`executor.devices.base.Device`): cuda, cpu and sim."""

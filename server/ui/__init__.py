"""The status page and the chat. Knows metrics, tracks and the ladder; reads them, and changes nothing."""

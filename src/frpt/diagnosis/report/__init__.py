"""A diagnosis as one self-contained HTML page: ``page.to_html``. The words of the verdict are used elsewhere too."""

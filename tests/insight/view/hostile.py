"""Texts that would run in a page, or change it, if they became markup."""

SCRIPT = "<script>document.title = window.ran = 'script'</script>"
IMAGE = "<img src=x onerror=\"document.title = window.ran = 'image'\">"
ATTRIBUTE = '" autofocus onfocus="window.ran = \'attribute\'" x="\' --></style></title></svg>{{ 7 * 7 }}'
HOSTILE = SCRIPT + IMAGE + ATTRIBUTE

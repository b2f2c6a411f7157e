/* What a profiler sees of NVTX: writes the name of every range that is begun to the file that NVTX_RECORD names, a line each.
   NVTX loads it where NVTX_INJECTION64_PATH says. */
#include <stdio.h>
#include <stdlib.h>

#include <nvtx3/nvToolsExt.h>

static FILE *record;

static int NVTX_API onPush(const char *name) {
  if (record)
    fprintf(record, "%s\n", name);
  return 0;
}

static int NVTX_API onPop(void) { return 0; }

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t getExportTable);

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t getExportTable) {
  const NvtxExportTableCallbacks *callbacks = getExportTable(NVTX_ETID_CALLBACKS);
  NvtxFunctionTable table = NULL;
  unsigned int size = 0;
  const char *path = getenv("NVTX_RECORD");
  if (!callbacks || !path ||
      !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) ||
      size <= NVTX_CBID_CORE_RangePop)
    return 0;
  record = fopen(path, "w");
  *table[NVTX_CBID_CORE_RangePushA] = (NvtxFunctionPointer)onPush;
  *table[NVTX_CBID_CORE_RangePop] = (NvtxFunctionPointer)onPop;
  return record != NULL;
}

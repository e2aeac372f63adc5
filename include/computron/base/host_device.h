// Marks functions that an accelerator runs too: its build defines the marker, elsewhere it is nothing.
#pragma once

#ifndef COMPUTRON_HOST_DEVICE
#define COMPUTRON_HOST_DEVICE
#endif
